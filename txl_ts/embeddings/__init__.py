"""From raw rows to tokens: the causal normaliser, the window over past rows, the patch embedding."""

from txl_ts.embeddings.normaliser import RunningNormaliser, Scale, StandardNormaliser
from txl_ts.embeddings.patch import PatchEmbedding
from txl_ts.embeddings.window import RowWindow

__all__ = ["PatchEmbedding", "RowWindow", "RunningNormaliser", "Scale", "StandardNormaliser"]
