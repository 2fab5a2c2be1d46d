"""Who gets what, one each, so that the sum of what it costs is least: the method of Kuhn and Munkres.

scipy has it as `linear_sum_assignment`, and the tests compare with that. But to import scipy takes half a second and 50
MB, in the process that must answer its peers meanwhile, and the core has no libraries (decision 0040).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf


def least_cost(costs: Sequence[Sequence[float]]) -> list[int]:
    """`costs`: of each row with each column, as many of both, finite. Returns the column of each row.

    Rows come one after the other. Each is put in by the shortest path of columns that change hands, with prices by
    which no cost is negative (Jonker and Volgenant 1987). It takes the cube of the rows at worst.
    """
    size = len(costs)
    row_prices, column_prices = [0.0] * size, [0.0] * size
    row_of = [-1] * size
    for added in range(size):
        distances, before, reached = [inf] * size, [-1] * size, [False] * size
        row, column, least = added, -1, 0.0
        while row >= 0:
            nearest, closest = inf, -1
            for other in range(size):
                if reached[other]:
                    continue
                through = least + costs[row][other] - row_prices[row] - column_prices[other]
                if through < distances[other]:
                    distances[other], before[other] = through, column
                if distances[other] < nearest:
                    nearest, closest = distances[other], other
            least, column = nearest, closest
            reached[column] = True
            row = row_of[column]
        row_prices[added] += least
        for other in range(size):
            if reached[other] and other != column:
                row_prices[row_of[other]] += least - distances[other]
                column_prices[other] -= least - distances[other]
        while column >= 0:
            row_of[column] = added if before[column] < 0 else row_of[before[column]]
            column = before[column]
    columns = [0] * size
    for column, row in enumerate(row_of):
        columns[row] = column
    return columns
