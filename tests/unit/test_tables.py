"""A table is a value: whoever holds a version sees what was in it, whatever came after."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trainmover.job.tables import Table

CHANGES = st.lists(
    st.tuples(st.sampled_from(["put", "drop", "from"]), st.integers(0, 5), st.integers(0, 30)),
    max_size=40,
)


@given(CHANGES)
def test_every_version_stays_what_it_was(changes: list[tuple[str, int, int]]) -> None:
    tables: list[Table[int, int]] = [Table({1: 1})]
    models: list[dict[int, int]] = [{1: 1}]
    table, model = tables[0], models[0]
    for verb, key, value in changes:
        match verb:
            case "put":
                table, model = table.put(key, value), {**model, key: value}
            case "drop":
                table, model = table.drop(key), {k: v for k, v in model.items() if k != key}
            case _:  # go on from an earlier version
                table, model = tables[value % len(tables)], models[value % len(models)]
        tables.append(table)
        models.append(model)
    for table, model in zip(tables, models, strict=True):
        assert dict(table.items()) == model
        assert (len(table), set(table)) == (len(model), set(model))
    assert [table == other for table in tables for other in tables] == [
        model == other for model in models for other in models
    ]


def test_what_changes_nothing_is_the_same_table() -> None:
    table = Table.of(["a"])
    assert table.put("a", None) is table
    assert table.drop("b") is table


def test_it_may_change_while_somebody_goes_through_it() -> None:
    table: Table[int, int] = Table({number: number for number in range(10)})
    left = table
    for key in table:
        left = left.drop(key)
    assert (len(left), len(table)) == (0, 10)
