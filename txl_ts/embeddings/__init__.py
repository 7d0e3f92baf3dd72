"""From raw rows to tokens: the causal normaliser, the window over past rows, the patch embedding, and units."""

from txl_ts.embeddings.covariates import Beside, CovariateEmbedding, Projection, beside_of, row_inputs
from txl_ts.embeddings.normaliser import LARGEST, RunningNormaliser, Scale, StandardNormaliser
from txl_ts.embeddings.patch import PatchEmbedding
from txl_ts.embeddings.units import Units
from txl_ts.embeddings.window import RowWindow

__all__ = [
    "LARGEST",
    "Beside",
    "CovariateEmbedding",
    "PatchEmbedding",
    "Projection",
    "RowWindow",
    "RunningNormaliser",
    "Scale",
    "StandardNormaliser",
    "Units",
    "beside_of",
    "row_inputs",
]
