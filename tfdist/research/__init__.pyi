"""The public names of tfdist.research, and the module that defines each."""

from tfdist.research import federated as federated
from tfdist.research import model_parallel as model_parallel
from tfdist.research.model_parallel.devices import Device as Device
from tfdist.research.model_parallel.devices import Link as Link
from tfdist.research.model_parallel.devices import Links as Links
from tfdist.research.model_parallel.fit import DoesNotFitError as DoesNotFitError
from tfdist.research.model_parallel.graph import LayerEdge as LayerEdge
from tfdist.research.model_parallel.graph import LayerGraph as LayerGraph
from tfdist.research.model_parallel.graph import LayerGraphError as LayerGraphError
from tfdist.research.model_parallel.graph import LayerNode as LayerNode
from tfdist.research.model_parallel.graph import UnknownGraphError as UnknownGraphError
from tfdist.research.model_parallel.measured import measure_layers as measure_layers
from tfdist.research.model_parallel.pipeline.errors import (
    PipelineError as PipelineError,
)
from tfdist.research.model_parallel.pipeline.strategy import (
    PipelineStrategy as PipelineStrategy,
)
from tfdist.research.model_parallel.place import place_layers as place_layers
from tfdist.research.model_parallel.plan import LayerPlan as LayerPlan
from tfdist.research.model_parallel.splitting.model import split_layers as split_layers
from tfdist.research.model_parallel.splitting.split import LayerMatrix as LayerMatrix
from tfdist.research.model_parallel.splitting.split import Split as Split
from tfdist.research.model_parallel.splitting.split import SplitError as SplitError
