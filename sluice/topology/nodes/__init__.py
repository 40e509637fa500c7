"""The nodes of a topology, as plain values.

Authors make them with handles: `streams`, `tables`, `groups`. A node's class defines everything
about the node. It gives the node's parents and texts, how the operator takes the parents' rows, and
whether the node keeps keys and is a table. So a new kind of node needs a class here, a method of a
handle, and its operator (`action_of` in `plan/operator_actions.py`) or, if it is stateless, its
columns (`plan/scopes.py`).
"""

from __future__ import annotations

from sluice.topology.nodes.aggregates import Aggregate as Aggregate
from sluice.topology.nodes.aggregates import Cogroup as Cogroup
from sluice.topology.nodes.aggregates import CogroupedStream as CogroupedStream
from sluice.topology.nodes.aggregates import PythonAggregate as PythonAggregate
from sluice.topology.nodes.aggregates import Suppress as Suppress
from sluice.topology.nodes.ancestors import follows_state as follows_state
from sluice.topology.nodes.ancestors import is_step_name as is_step_name
from sluice.topology.nodes.ancestors import known_name as known_name
from sluice.topology.nodes.ancestors import reads_pattern as reads_pattern
from sluice.topology.nodes.ancestors import sources_of as sources_of
from sluice.topology.nodes.ancestors import table_of_rows as table_of_rows
from sluice.topology.nodes.ancestors import upstream as upstream
from sluice.topology.nodes.joins import Join as Join
from sluice.topology.nodes.node import ChildNode as ChildNode
from sluice.topology.nodes.node import Foreign as Foreign
from sluice.topology.nodes.node import Input as Input
from sluice.topology.nodes.node import Node as Node
from sluice.topology.nodes.node import Repartitions as Repartitions
from sluice.topology.nodes.node import RowStep as RowStep
from sluice.topology.nodes.node import StreamOperator as StreamOperator
from sluice.topology.nodes.operators import AskingOperator as AskingOperator
from sluice.topology.nodes.operators import Branch as Branch
from sluice.topology.nodes.operators import Call as Call
from sluice.topology.nodes.operators import Deduplicate as Deduplicate
from sluice.topology.nodes.operators import Lookup as Lookup
from sluice.topology.nodes.operators import Process as Process
from sluice.topology.nodes.operators import SetMetadata as SetMetadata
from sluice.topology.nodes.row_steps import Apply as Apply
from sluice.topology.nodes.row_steps import Expect as Expect
from sluice.topology.nodes.row_steps import Filter as Filter
from sluice.topology.nodes.row_steps import FlatMapValues as FlatMapValues
from sluice.topology.nodes.row_steps import MapValues as MapValues
from sluice.topology.nodes.row_steps import Merge as Merge
from sluice.topology.nodes.row_steps import Repartition as Repartition
from sluice.topology.nodes.row_steps import Select as Select
from sluice.topology.nodes.row_steps import SelectKey as SelectKey
from sluice.topology.nodes.row_steps import Transform as Transform
from sluice.topology.nodes.sinks import Late as Late
from sluice.topology.nodes.sinks import Sink as Sink
from sluice.topology.nodes.sources import Source as Source
from sluice.topology.nodes.tables import ChangedRows as ChangedRows
from sluice.topology.nodes.tables import Changes as Changes
from sluice.topology.nodes.tables import ToStream as ToStream
from sluice.topology.nodes.tables import ToTable as ToTable
from sluice.values.record_metadata import Emit as Emit
from sluice.values.record_metadata import EmitStrategy as EmitStrategy
from sluice.values.record_metadata import Gives as Gives
from sluice.values.record_metadata import How as How
from sluice.values.record_metadata import OnError as OnError
from sluice.values.record_metadata import OnMissing as OnMissing
from sluice.values.record_metadata import OnNull as OnNull
from sluice.values.record_metadata import OnTime as OnTime
from sluice.values.record_metadata import Until as Until
