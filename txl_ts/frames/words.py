"""Numbers in sentences."""


def counted(number: int, one: str, many: str | None = None) -> str:
    """Write a number with its noun.

    Examples
    --------
    >>> from txl_ts.frames.words import counted
    >>> counted(1, "row"), counted(5687, "row"), counted(2, "row has", "rows have")
    ('1 row', '5,687 rows', '2 rows have')
    """
    return f"{number:,} {one if abs(number) == 1 else many or f'{one}s'}"
