"""The public names of tfdist.data, and the module that defines each."""

from tfdist.data.errors import SourceError as SourceError
from tfdist.data.leased import LeasedDataset as LeasedDataset
from tfdist.data.pipeline_report import PipelineReport as PipelineReport
from tfdist.data.sources import from_files as from_files
from tfdist.data.sources import from_source as from_source
