"""Attack the compiler with random graphs: strategies for hypothesis, oracles, campaigns, and the command `fuzz`."""

from __future__ import annotations

from kernelyard_fuzz.campaign import Find as Find
from kernelyard_fuzz.campaign import Tally as Tally
from kernelyard_fuzz.campaign import run_campaign as run_campaign
from kernelyard_fuzz.errors import FoundError as FoundError
from kernelyard_fuzz.graphs import Graph as Graph
from kernelyard_fuzz.graphs import Recipe as Recipe
from kernelyard_fuzz.graphs import graphs as graphs
