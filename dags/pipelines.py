"""The DAGs of all pipelines in SLUICE_PIPELINES, one for each file."""

from sluice.orchestration.dags import pipeline_dags
from sluice.settings import settings

globals().update(pipeline_dags(settings().pipelines))
