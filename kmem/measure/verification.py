"""The steps of a final verdict, cheapest and most telling first.

In order: the problem's own values, state and repeated calls, what is compiled, where the time goes,
families of inputs, layouts and sizes, other parameters, the time, and all of it at small sizes.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import islice

from kmem.measure.competition import Awaited, settle_baselines
from kmem.measure.examine.cases import check_case, check_families, check_other_parameters
from kmem.measure.examine.compiled import (
    CompiledForward,
    check_compiled,
    check_operators,
    check_products,
    check_status,
    find_changed_arguments,
    plain_arguments,
    specialisations,
)
from kmem.measure.examine.examination import Examination, Refused
from kmem.measure.examine.loading import load_candidate, release_outputs
from kmem.measure.examine.provenance import check_all_runs, check_provenance
from kmem.measure.examine.repeats import (
    check_gradient_modes,
    check_held,
    check_repeats,
    check_with_arguments,
)
from kmem.measure.examine.state import check_state
from kmem.measure.examine.variants import check_variants
from kmem.measure.oracle.inputs.families import SCREENING_FAMILIES
from kmem.measure.resources import JudgeResources
from kmem.measure.settings import JudgeSettings
from kmem.measure.stopwatch import time_against_best
from kmem.measure.timing.statistics import estimated_timing
from kmem.records import Baseline, Kernel, Status, Timing, Workload

#: Sizes between the small ones and the full at which constants of full size are looked for.
_SIZES_BETWEEN = 4


class Verification:
    """Takes one loaded worker through every check of a verdict, for one judge."""

    def __init__(
        self,
        resources: JudgeResources,
        settings: JudgeSettings,
        target: str,
        estimate_ms: Callable[[Kernel], float] | None,
        compile_at: Callable[[Kernel, Workload], CompiledForward] | None,
    ) -> None:
        """Nothing runs yet.

        Args:
            target: the name of the device that kernels are compiled for.
            estimate_ms: as the judge's.
            compile_at: as the judge's.
        """
        self._resources = resources
        self._settings = settings
        self._target = target
        self._estimate_ms = estimate_ms
        self._compile_at = compile_at

    def run(
        self, examination: Examination, baselines: Sequence[Baseline] | Awaited
    ) -> tuple[Timing, Mapping[str, str]]:
        """The timing of a kernel that passes, and the state of the machine it was taken in.

        Raises Refused, WorkerFailure, WorkerLost: if it does not pass.
        """
        resources, gpu = self._resources, self._settings.gpu
        reference, seed_for = resources.reference(), resources.seed_for
        resources.turn_to("verifying: its own values")
        load_candidate(examination, reference)
        examination.holds = True
        expected = check_case(examination, "drawn", seed_for("verify", "drawn"))
        assert expected is not None, "the problem's own values are defined, or it is no problem"
        check_state(examination, expected.answer)
        answer = expected.answer
        del expected  # at full size it holds gigabytes
        resources.turn_to("verifying: repeats")
        check_repeats(examination, seed_for("verify", "repeat"))
        launches = examination.launches
        compiled: list[CompiledForward] = []
        if self._compile_at is not None and not gpu:
            compiled = self._check_compiled(examination)
        resources.turn_to("verifying: provenance")
        check_provenance(examination, seed_for("verify", "provenance"), gpu=gpu)
        if compiled:
            check_operators(examination, compiled, self._target)
        families = (*SCREENING_FAMILIES, "large")
        if not resources.has_small:
            families = reference.families[1:]  # the first is the problem's own values
        resources.turn_to("verifying: families")
        check_families(examination, families, seed_for)
        check_all_runs(examination)
        resources.turn_to("verifying: layouts, gradients and state")
        if not resources.has_small:
            check_variants(examination, seed_for("verify", "variants"))
        check_gradient_modes(examination, seed_for("verify", "gradients"))
        check_held(examination)
        if not answer.eager_state:
            check_state(examination, answer)  # after all these calls
        resources.turn_to("verifying: other parameters")
        check_other_parameters(examination, seed_for)
        resources.turn_to("timing in pairs")
        timing, environment = self._time(examination, baselines)
        examination.take_flags(reference)
        if resources.has_small and not self._check_small(examination, launches):
            # At the small size the kernel stepped aside: what it was not tried with there is tried
            # here.
            load_candidate(examination, reference)
            untried = [family for family in reference.families if family not in families]
            check_families(examination, untried, seed_for)
            check_variants(examination, seed_for("verify", "variants"), own_size_only=True)
            check_all_runs(examination)
        if len(compiled) > 1 and not examination.kernel.small_constants:
            self._check_full_constants(examination, compiled)
        return timing, environment

    def time_again(
        self,
        examination: Examination,
        baselines: Sequence[Baseline] | Awaited,
        proved: Examination,
    ) -> tuple[Timing, Mapping[str, str]]:
        """The timing of a kernel that passed `run` before, with the values around it checked.

        The same judge would check the rest on the very same inputs again.

        Args:
            proved: what was found about the kernel; takes over what the times show.
        """
        load_candidate(examination, self._resources.reference())
        check_case(examination, "drawn", self._resources.seed_for("verify", "drawn"))
        examination.gpu_kernels = proved.gpu_kernels
        taken = self._time(examination, baselines)
        proved.samples_ms = examination.samples_ms
        proved.flags |= examination.flags
        return taken

    def _time(
        self, examination: Examination, baselines: Sequence[Baseline] | Awaited
    ) -> tuple[Timing, Mapping[str, str]]:
        """Pairs against the best baseline and one more check on fresh inputs, or the estimate."""
        if not self._settings.gpu:
            return self.estimate(examination.kernel), {}
        release_outputs(examination)
        known = settle_baselines(examination, baselines)
        taken = time_against_best(examination, known, self._resources, self._settings.seed)
        after = self._resources.seed_for("verify", "after timing")
        check_case(examination, "drawn", after)
        return taken

    def _check_small(self, examination: Examination, launches: int) -> bool:
        """Every family, other sizes and layouts on the small workload.

        That is cheap, and the sizes are ones that the kernel may not have been written for. False
        if the file launches kernels at the full size and none here: then its kernels have not been
        tried with these values.

        Args:
            launches: of one forward at the full size.
        """
        resources = self._resources
        resources.turn_to("verifying: first call at small sizes")
        reference = resources.reference("small")
        load_candidate(examination, reference)
        check_families(examination, reference.families[:1], resources.seed_for)
        resources.turn_to("verifying: families at small sizes")
        check_families(examination, reference.families[1:], resources.seed_for)
        launched = bool(examination.launches) or not launches
        if not launched:
            examination.flags.add("specialised")
        resources.turn_to("verifying: variants at small sizes")
        check_repeats(examination, resources.seed_for("small", "repeat"))
        check_variants(examination, resources.seed_for("small", "variants"))
        examination.take_flags(reference)
        return launched

    def _check_compiled(self, examination: Examination) -> list[CompiledForward]:
        """What is compiled is what was proved, at the sizes of the proof and at full size.

        Returns:
            What it came to, at the sizes of the proof first.
        """
        kernel, main = examination.kernel, self._resources.main
        at = self._resources.workload
        compiled = [self._compile_at(kernel, at(main))]
        if main != "full":
            compiled.append(self._compile_at(kernel, at("full")))
        for each in compiled:
            check_status(each, self._target)
        check_compiled(examination, compiled, self._target)
        later = examination.kernels_seen
        for changed in find_changed_arguments(examination, compiled, self._target):
            arguments = plain_arguments(changed, self._target)
            seed = self._resources.seed_for("verify", "arguments of the target")
            # a first call makes something of the parameters, and so does one after they changed
            check_with_arguments(
                examination, arguments, seed, state="" if changed.kernels == later else "written"
            )
        for each in compiled:
            check_products(examination, each)
        return compiled

    def _check_full_constants(
        self, examination: Examination, compiled: Sequence[CompiledForward]
    ) -> None:
        """Kernels are right with the constants of full size, at sizes between that bring these too.

        Flags what remains as "constants_unproved". Raises Refused, WorkerFailure, WorkerLost.

        Args:
            compiled: at the sizes of the proof, and at full size.
        """
        assert self._compile_at is not None, "it compiled these"
        proved, shipped = map(specialisations, compiled)
        missing = shipped - proved
        for name in islice(self._resources.between(), _SIZES_BETWEEN) if missing else ():
            between = self._compile_at(examination.kernel, self._resources.workload(name))
            found = missing & specialisations(between)
            if not found:
                continue
            try:
                load_candidate(examination, self._resources.reference(name))
                check_families(examination, SCREENING_FAMILIES, self._resources.seed_for)
            except Refused as ex:
                if ex.status is Status.TIMED_OUT:
                    break
                raise Refused(ex.status, f"with the constants of full size: {ex}") from ex
            missing -= found
            if not missing:
                break
        if missing:
            examination.flags.add("constants_unproved")

    def estimate(self, kernel: Kernel) -> Timing:
        """The time that is predicted for a kernel, where there is no GPU."""
        assert self._estimate_ms is not None, "the judge demands it without a GPU"
        return estimated_timing(self._estimate_ms(kernel))
