"""temporary"""
from tracejit.ir import Graph
def simplify(graph: Graph) -> Graph: return graph
def simplify_fast(graph: Graph) -> Graph: return graph
