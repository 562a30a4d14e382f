"""The public names of tfdist.embedding, and the module that defines each."""

from tfdist.embedding.aggregated_lookup import LookupBytesCounter as LookupBytesCounter
from tfdist.embedding.cost import LookupBytes as LookupBytes
from tfdist.embedding.growing.admission import CountFilter as CountFilter
from tfdist.embedding.growing.admission import ProbabilityFilter as ProbabilityFilter
from tfdist.embedding.growing.chain import read_export as read_export
from tfdist.embedding.growing.delta_export import DeltaExport as DeltaExport
from tfdist.embedding.growing.evict_rows import EvictRows as EvictRows
from tfdist.embedding.growing.eviction import EvictRare as EvictRare
from tfdist.embedding.growing.eviction import EvictSmall as EvictSmall
from tfdist.embedding.growing.eviction import EvictUnseen as EvictUnseen
from tfdist.embedding.growing.frozen import frozen as frozen
from tfdist.embedding.growing.layers import DynamicEmbedding as DynamicEmbedding
from tfdist.embedding.growing.layers import DynamicEmbeddingBag as DynamicEmbeddingBag
from tfdist.embedding.layers import Embedding as Embedding
from tfdist.embedding.layers import EmbeddingBag as EmbeddingBag

# As one line, it would be too long.
# isort: off
# fmt: off
from tfdist.embedding.aggregated_lookup import (
    embedding_lookup_sparse_with_distributed_aggregation
    as embedding_lookup_sparse_with_distributed_aggregation,
)
