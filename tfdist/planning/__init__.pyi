"""The public names of tfdist.planning, and the module that defines each."""

from tfdist.planning.plan import Plan as Plan
from tfdist.planning.plan import Receipt as Receipt
from tfdist.planning.planned import Planned as Planned
from tfdist.planning.planner import plan_variables as plan_variables
from tfdist.planning.weight import PlannedVariable as PlannedVariable
from tfdist.planning.weight import Weight as Weight
