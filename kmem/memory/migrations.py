"""The tables of the database, as append-only migrations: `mNNN_verb_noun(db)`, never edited after a
release.

db/schema.sql is generated from these by tools/write_schema.py. Every table is strict. Records are
kept whole as JSON (kmem/serialize.py) in a column `record`; the other columns exist because a query
needs them. The tables of runs are in tables.py.
"""

from sqlite_utils import Database
from sqlite_utils.migrations import Migrations

from kmem.memory.runs.tables import CONVERSATIONS, RUNS, UNANSWERED

#: "kmem" in ASCII, in the file's header: tells a kmem database from any other SQLite file.
#: Source: sqlite.org/pragma.html#pragma_application_id.
APPLICATION_ID = 0x6B6D656D

migrations = Migrations("kmem")


@migrations()
def m001_create_tables(db: Database) -> None:
    """Runs and their short-term memory, kernels, the outcome ledger, devices, skills and
    embeddings.
    """
    db.execute(f"pragma application_id = {APPLICATION_ID:d}")  # a pragma takes no bound parameter
    for statement in (*RUNS, *_LEDGER, *_DEVICES, *_LIBRARY):
        db.execute(statement)


@migrations()
def m002_add_plans(db: Database) -> None:
    """What each round of a run decided to try, and what it vetoed."""
    db.execute(
        """
        create table plans (
            run text not null references runs(id),
            round integer not null,
            record text not null,
            primary key (run, round)
        ) strict
        """
    )


@migrations()
def m003_add_evidence(db: Database) -> None:
    """The ledger summed up for posteriors; empty until somebody asks, however many outcomes there
    are.
    """
    for statement in _EVIDENCE:
        db.execute(statement)


@migrations()
def m004_add_contributors(db: Database) -> None:
    """This memory's name in a team, trust and licences by origin, redacted copies, segments already
    merged.
    """
    for statement in _CONTRIBUTORS:
        db.execute(statement)


@migrations()
def m005_sum_outcomes_as_they_arrive(db: Database) -> None:
    """Sums of the ledger that each outcome updates itself, recalled kernels apart; they are derived
    anew when first asked for.
    """
    for statement in _SUMS:
        db.execute(statement)


@migrations()
def m006_add_conversations(db: Database) -> None:
    """What each run asked language models and was answered, what it learnt from its measurements,
    and the judge's final verdicts.
    """
    for statement in CONVERSATIONS:
        db.execute(statement)


@migrations()
def m007_add_unanswered(db: Database) -> None:
    """Questions to language models that may have been charged and have no answer."""
    for statement in UNANSWERED:
        db.execute(statement)


@migrations()
def m008_find_outcomes_of_recipes(db: Database) -> None:
    """How a recipe's settings did on a graph, found among a million outcomes.

    See kmem/memory/ledger/experience.py.
    """
    db.execute(
        "create index outcomes_by_recipe on outcomes (skill, graph_hash, arch, precision, purity) "
        "where status = 'passed'"
    )


_LEDGER = (
    """
    create table graphs (
        hash text primary key,
        structure_hash text not null,
        sizes blob not null
    ) strict
    """,
    "create index graphs_by_structure on graphs (structure_hash)",
    """
    create table outcomes (
        id integer primary key,
        hash text not null unique,
        graph_hash text not null references graphs(hash),
        arch text not null,
        precision text not null,
        purity text not null,
        skill text not null,
        status text not null,
        source_hash text not null,
        latency_ms real,
        log_speedup real,
        created_at text not null,
        record text not null
    ) strict
    """,
    (
        "create index outcomes_by_graph on outcomes (graph_hash, arch, precision, purity, status, "
        "latency_ms)"
    ),
    "create index outcomes_by_skill on outcomes (skill, arch, status, log_speedup)",
    """
    create table outcome_operators (
        operator text not null,
        by_recipe integer not null,
        arch text not null,
        precision text not null,
        purity text not null,
        status text not null,
        ratio real not null,
        outcome integer not null references outcomes(id),
        primary key (operator, by_recipe, arch, precision, purity, status, ratio, outcome)
    ) strict, without rowid
    """,
    """
    create table retractions (
        hash text primary key,
        outcome_hash text not null,
        record text not null
    ) strict
    """,
    "create index retractions_by_outcome on retractions (outcome_hash)",
    """
    create trigger outcomes_are_never_updated before update on outcomes
    begin select raise(abort, 'the ledger is append-only: add a retraction instead'); end
    """,
    """
    create trigger outcomes_are_never_deleted before delete on outcomes
    begin select raise(abort, 'the ledger is append-only: add a retraction instead'); end
    """,
    """
    create trigger retractions_are_never_updated before update on retractions
    begin select raise(abort, 'the ledger is append-only'); end
    """,
    """
    create trigger retractions_are_never_deleted before delete on retractions
    begin select raise(abort, 'the ledger is append-only'); end
    """,
    # An interrupted measurement says nothing about the skill, so it does not count as tried.
    """
    create view skill_outcomes as
    select
        skill,
        arch,
        count(*) as tried,
        sum(status = 'passed') as passed,
        sum(coalesce(log_speedup > 0, 0)) as improved,
        avg(log_speedup) as mean_log_speedup
    from outcomes
    where status != 'interrupted' and not exists (select 1 from retractions where outcome_hash = outcomes.hash)
    group by skill, arch
    """,
)

_DEVICES = (
    """
    create table baselines (
        problem_hash text not null,
        workload text not null,
        device text not null,
        contract text not null,
        versions text not null,
        name text not null,
        record text not null,
        primary key (problem_hash, workload, device, contract, versions, name)
    ) strict
    """,
    """
    create table ceilings (
        device text not null,
        versions text not null,
        record text not null,
        measured_at text not null,
        primary key (device, versions)
    ) strict
    """,
)

_LIBRARY = (
    # Every version of a skill ever seen; `library` says which one a name means now.
    """
    create table skills (
        id integer primary key,
        content_hash text not null unique,
        name text not null,
        description text not null,
        body text not null,
        operators text not null,
        bottlenecks text not null,
        signature text not null,
        arch text not null,
        precision text not null
    ) strict
    """,
    """
    create table library (
        name text primary key,
        content_hash text not null references skills(content_hash),
        origin text not null,
        path text not null
    ) strict
    """,
    "create index library_by_content on library (content_hash)",
    """
    create table library_version (
        id integer primary key check (id = 1),
        version integer not null
    ) strict
    """,
    "insert into library_version (id, version) values (1, 0)",
    (
        "create virtual table skill_text using fts5 (name, description, body, tokenize = 'porter "
        "unicode61')"
    ),
    """
    create table embeddings (
        model text not null,
        content_hash text not null,
        vector blob not null,
        primary key (model, content_hash)
    ) strict, without rowid
    """,
)

_EVIDENCE = (
    # Sums are integers, in units of 1e-9: they do not depend on the order of addition. See
    # kmem/memory/ledger/track_records.py.
    """
    create table evidence (
        skill text not null,
        bottleneck text not null,
        operator text not null,
        arch text not null,
        torch text not null,
        triton text not null,
        origin text not null,
        tried integer not null,
        passed integer not null,
        timed integer not null,
        log_speedup_e9 integer not null,
        log_speedup_squared_e9 integer not null,
        primary key (skill, bottleneck, operator, arch, torch, triton, origin)
    ) strict, without rowid
    """,
    """
    create table evidence_signatures (
        skill text not null,
        metric text not null,
        origin text not null,
        outcomes integer not null,
        total_e6 integer not null,
        primary key (skill, metric, origin)
    ) strict, without rowid
    """,
    # Outcomes whose retraction the sums know; the watermark is the last outcome they contain.
    "create table evidence_retracted (outcome_hash text primary key) strict, without rowid",
    """
    create table evidence_watermark (
        id integer primary key check (id = 1),
        outcome integer not null
    ) strict
    """,
    "insert into evidence_watermark (id, outcome) values (1, 0)",
)

_CONTRIBUTORS = (
    """
    create table contributor (
        id integer primary key check (id = 1),
        name text not null
    ) strict
    """,
    """
    create table trust (
        origin text primary key,
        level real not null check (level between 0 and 1)
    ) strict
    """,
    """
    create table licences (
        origin text primary key,
        licence text not null
    ) strict
    """,
    # A redacted outcome is another record than the outcome it was made from; where both are known,
    # the redacted one is retracted.
    """
    create table redactions (
        redacted_hash text primary key,
        original_hash text not null
    ) strict
    """,
    "create index redactions_by_original on redactions (original_hash)",
    """
    create table segments (
        name text primary key,
        remote text not null,
        merged_at text not null
    ) strict
    """,
)

_SUMS = (
    # What a skill earned is read from the sums alone.
    "drop view skill_outcomes",
    "drop index outcomes_by_skill",
    "alter table outcomes drop column log_speedup",
    "create index outcomes_by_skill on outcomes (skill)",
    # Few outcomes were refused by the judge, and recall asks of every winner whether its kernel
    # ever was. See kmem/memory/ledger/recall.py.
    """
    create index outcomes_refused on outcomes (graph_hash, source_hash, arch)
    where status in (
        'wrong_values', 'wrong_contract', 'mutated_input', 'not_repeatable', 'impure', 'implausible', 'refused_source'
    )
    """,
    "drop table evidence",
    "drop table evidence_signatures",
    "drop table evidence_retracted",
    "drop table evidence_watermark",
    # Log-speedups in units of 1e-9, signature totals of 1e-6: sums of integers do not depend on the
    # order. See kmem/memory/ledger/tally.py.
    """
    create table evidence (
        id integer primary key,
        skill text not null,
        bottleneck text not null,
        operator text not null,
        arch text not null,
        torch text not null,
        triton text not null,
        origin text not null,
        tried integer not null,
        passed integer not null,
        timed integer not null,
        improved integer not null,
        log_speedup_e9 integer not null,
        log_speedup_squared_e9 integer not null,
        recalled integer not null,
        recalled_log_speedup_e9 integer not null,
        revision integer not null,
        unique (skill, bottleneck, operator, arch, torch, triton, origin)
    ) strict
    """,
    "create index evidence_by_revision on evidence (revision)",
    """
    create table evidence_signatures (
        skill text not null,
        origin text not null,
        sums text not null,
        primary key (skill, origin)
    ) strict, without rowid
    """,
    # outcome: the last one summed; revision: counts changes; generation: counts derivations anew,
    # after which row numbers mean other cells.
    """
    create table evidence_state (
        id integer primary key check (id = 1),
        outcome integer not null,
        revision integer not null,
        generation integer not null
    ) strict
    """,
    "insert into evidence_state (id, outcome, revision, generation) values (1, 0, 0, 0)",
)
