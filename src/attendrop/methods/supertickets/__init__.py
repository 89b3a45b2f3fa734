"""Super tickets: heads and feed-forwards that a model can do without."""

from .method import SuperTickets, find_supertickets
from .tickets import Tickets

__all__ = ["SuperTickets", "Tickets", "find_supertickets"]
