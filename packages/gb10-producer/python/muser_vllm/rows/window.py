"""Which window rows of a chunk are taken out of the cache."""

from __future__ import annotations


def first_window_row(
    *, start: int, end: int, window: int, export_end: int, row_bytes: int, free: int, short: bool
) -> int | None:
    """First row of [start, end) that is kept; `end` for none; None when rows that the decode needs do not fit.

    Rows outside the prompt's last window only make resume points: they are skipped while memory is short. Whether the
    link is behind is judged by the producer, which then leaves such rows unread (window-rows.ts).

    :param free: bytes that may still be taken; :param row_bytes: of all window layers, K and V
    """
    if row_bytes == 0:
        return end
    wanted = max(start, end - window)
    fits = (end - wanted) * row_bytes <= free
    needed = max(start, export_end - window)
    if needed >= end:
        return wanted if fits and not short else end
    if fits:
        return wanted
    return needed if (end - needed) * row_bytes <= free else None
