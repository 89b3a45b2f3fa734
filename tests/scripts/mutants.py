"""Whether the tests notice wrong code: `python tests/scripts/mutants.py [--only TEXT]`.

Each mutant changes one place of the package in a copy of the tree, and the test files named beside it run until a test
fails. A mutant is killed if one does. A mutant whose old text is gone is reported as stale: give it the new text.
Mutants that change no behaviour do not belong into the table.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIMIT = 300  # seconds for the tests of one mutant; one that runs longer is killed too


# File below src/attendrop -> old text, which occurs once; new text; test files without "test_" and ".py", and after a
# colon what pytest selects of them (-k).
MUTANTS: dict[str, list[tuple[str, str, str]]] = {
    "core/schedule.py": [
        ("return epoch % 2 == 1", "return epoch % 2 == 0", "schedule"),
        ('(1 if end_on == "plain" else 0)', '(0 if end_on == "plain" else 1)', "schedule"),
        ("v0 + (v1 - v0) * (fraction - t0)", "v0 + (v1 - v0) * fraction", "schedule"),
        ("min(1.0, self.step / max(1, self.total_steps))",
         "min(1.0, (self.step + 1) / max(1, self.total_steps))", "schedule addrop:scheduled_strength"),
        ("return max(values_of(strength))", "return min(values_of(strength))", "schedule rdrop:schedule"),
    ],
    "core/engine.py": [
        ("(self._micro_batches * self.world + self.rank) * self.batch_size",
         "(self._micro_batches + self.rank) * self.batch_size", "step"),
        ("(self._micro_batches * self.world + self.rank) * self.batch_size",
         "(self._micro_batches * self.world) * self.batch_size", "drophead:draws_depend"),
        ("        self._micro_batches += 1\n", "", "trainer:accumulation"),
        ("total = total + share * penalty", "total = total + penalty", "engine:penalty r3f:accumulated"),
        ("return loss / count if count > 1 else loss", "return loss", "freelb:hand"),
        ("with nullcontext() if redraws else preserved(batch.step.device),", "with nullcontext(),", "freelb:dropout"),
        ("plan = plan | own.repeated(self.views, rows)", "plan = plan | own", "engine:views rdrop:composes"),
        ("done // self._steps_per_epoch", "(done + 1) // self._steps_per_epoch", "engine:epochs"),
        ("torch.stack(values).mean() for name",
         "torch.stack(values).sum() for name", "step"),
        ("stack.callback(self.seams.unbind)", "pass", "engine"),
        ("if name not in self.columns}, self.views", "}, self.views", "engine:columns structure_mask:equation"),
    ],
    "core/checks.py": [
        ("for one, other in permutations(regularizers, 2):", "for one, other in ():", "r3f:loss_both"),
    ],
    "capture/half_weights.py": [
        ("self._used_otherwise.update(_parameters_in((args, kwargs)))", "pass", "half_weights"),
        ("return self._reads[weight] == self._gradients[weight] == 1", "return True", "half_weights:left_to_autocast"),
        ("weight in trained and self", "self", "half_weights:unread_gradients"),
        ("if value.requires_grad else self._copies[value].detach()", "if True else None", "half_weights:frozen"),
        ("if weight._backward_hooks or weight._post_accumulate_grad_hooks:", "if False:", "half_weights:more_than"),
        ("torch._C._autograd._top_saved_tensors_default_hooks(False) is not None", "False",
         "half_weights:left_to_autocast"),
        ("            if weight in self._kept\n            and weight", "            if weight",
         "half_weights:left_to_autocast"),
        ("        if is_kept:\n            self._kept", "        if True:\n            self._kept",
         "half_weights:left_to_autocast"),
        ("dtype is None or dtype != self._dtype:", "dtype is None:", "half_weights:left_to_autocast"),
        ("if type(value) is nn.Parameter:", "if isinstance(value, nn.Parameter):", "half_weights:more_than"),
        ("        if kind is not None:\n            self._copies = {}\n", "", "half_weights:exception"),
    ],
    "capture/graphs.py": [
        ("of_weights[parameter] + of_copies.pop(parameter)", "of_copies.pop(parameter)", "half_weights:outside_the"),
    ],
    "core/rates.py": [
        ('"lr": group["lr"] * factor', '"lr": group["lr"]', "llrd"),
        ("sorted(set(of_parameters), reverse=True)", "sorted(set(of_parameters))", "llrd"),
        ("self.optimizer.param_groups[:] = self._own", "pass", "llrd"),
        ("factors.get(name, 1.0) * factor", "factor", "llrd:combine_with"),
    ],
    "trainer/choice.py": [
        ("return score if is_higher_better else -score", "return score", "wise_ft"),
        ("if method is None or step == self._step:", "if method is None:", "wise_ft"),
    ],
    "methods/llrd.py": [("(top - depth)", "(top - depth + 1)", "llrd")],
    "methods/freeze.py": [("depth < self.blocks", "depth <= self.blocks", "freeze")],
    "methods/lp_ft.py": [("step.progress.step < self._probing", "step.progress.step <= self._probing", "lp_ft")],
    "methods/wise_ft.py": [
        ("torch.lerp(pretrained.to(tuned.device, wide), tuned.detach().to(wide), alpha)",
         "torch.lerp(tuned.detach().to(wide), pretrained.to(tuned.device, wide), alpha)", "wise_ft"),
        ('if ".lora_A." in name or', "if False or", "wise_ft:adapter"),
    ],
    "methods/deni.py": [
        ("means[name] = total / self.models", "means[name] = total / len(others)", "deni"),
        ("self.noise / (step.progress.step + 1)", "self.noise", "deni"),
        ("since < period else None", "since <= period else None", "deni"),
    ],
    "core/step.py": [
        ('*(f"{stream}/{view}" for view in range(1, self.step.views))',
         "*(stream for view in range(1, self.step.views))", "scores_dropout:views unidrop:views"),
        ("self.first_position * -(-rows // self.size) + torch.arange",
         "self.first_position + torch.arange", "step"),
        ("random.shared_generator(self.seed, self.progress.step, name)",
         "random.shared_generator(self.seed, 0, name)", "headmask layerdrop:probability"),
        ("if k not in columns}", "}", "engine:columns"),
    ],
    "core/state.py": [
        ("if rank == 0 or name.startswith(local)", "if rank == 0", "step"),
        ('optimizer.load_state_dict({**state_dict, "state": states})', "pass", "concrete_dropout:checkpoint"),
    ],
    "random.py": [
        ("for word in (seed & WORD, seed >> 32 & WORD, step, site):",
         "for word in (seed & WORD, seed >> 32 & WORD, step):", "random drophead:draws_depend"),
        ("for word in (seed & WORD, seed >> 32 & WORD, step, site):",
         "for word in (seed & WORD, seed >> 32 & WORD, site):", "random drophead:draws_depend"),
        ("        torch.set_rng_state(cpu)\n", "        pass\n", "attribution:random_state attribution:draws"),
    ],
    "model/plan.py": [
        ("uniform=self.uniform | other.uniform", "uniform=self.uniform & other.uniform", "seams:merged"),
        ("return (*a, *b)", "return (*b, *a)", "seams:order"),
        ("x.shape[0] == rows > 1 else x", "x.shape[0] == rows > 3 else x", "engine:views"),
        ("as_keep(a) & as_keep(b)", "as_keep(a) | as_keep(b)", "seams:merged"),
    ],
    "model/attribution.py": [
        ("((k + 1) / self.steps, 1 / self.steps)", "(k / self.steps, 1 / self.steps)", "attribution:plain_sum"),
        ("float(w) / 2) for a, w", "float(w)) for a, w", "attribution:gauss"),
        ('scores if self.method == "ga" else self.record.attention() * scores', "scores", "attribution:plain_sum"),
        ("total = total + part * weight", "total = total + part * nodes[0][1]", "attribution:gauss"),
        ("objective(outputs)  # fixes the label", "pass", "attribution:plain_sum"),
        ("with probe.untracked(training=False):\n        with torch.no_grad(), _results",
         "with probe.untracked():\n        with torch.no_grad(), _results", "attribution:without_dropout"),
        ("below = results[: probe.seams.sites[site].block]", "below = []", "attribution:skip_blocks"),
    ],
    "model/objective.py": [
        ("gradient.mul_(-counted)", "gradient.mul_(-scale)", "token_head:attribution"),
        ("functional.pad(labels[:, 1:], (0, 1), value=IGNORED) if shift else labels", "labels",
         "attribution:plain_autograd"),
        ('return -outputs["loss"]', 'return outputs["loss"]', "attribution:plain_autograd"),
        ("return -losses.mean(-1), ((logits > 0)", "return -losses.sum(-1), ((logits > 0)", "attendout:example_scores"),
        ("return -(losses * counted).sum(-1) / n", "return (losses * counted).sum(-1) / n", "attendout:example_scores"),
        ("return -error.square(), -error", "return -error, -error", "attendout:example_scores"),
    ],
    "model/calls.py": [
        ("_watched(model, seams), _repeated(model, seams):", "_watched(model, seams):", "other_trainers:repeats"),
        ("plan = plan_of(len(records), inputs)", "plan = plan_of(0, inputs)", "other_trainers:contrastive"),
    ],
    "model/probe.py": [
        ("return gradient if scale == 1.0 else gradient.float() / scale", "return gradient", "trainer:fp16"),
    ],
    "model/modes.py": [
        ("module.training = mode", "module.training = True", "attribution:unchanged"),
    ],
    "model/sites.py": [
        ("return {n % depth for n in numbers}", "return set(numbers)", "attribution:selected"),
        ('queries, length if site.kind == "cross" else queries', "queries, queries", "scores_dropout:selected"),
    ],
    "model/tokens.py": [
        ("mask = labels != IGNORED", "mask = labels == IGNORED", "hiddencut:manual unidrop:manual"),
    ],
    "model/attention.py": [
        ("return zero_rows(gradient, *ctx.saved_tensors), None", "return gradient, None", "seams:zeroed"),
    ],
    "methods/addrop.py": [
        ("uniform < p * q", "uniform < p", "addrop:drop_rate"),
    ],
    "methods/_shared/patterns.py": [
        ("1 - (1 - p) ** (1 / span)", "p / span", "scores_dropout:probability"),
        ('keys + (span - 1 if pattern == "span" else 0)', "keys + (span - 1)", "scores_dropout attention_dropout"),
        ("return draws >= p", "return draws > 1 - p", "scores_dropout:probability"),
    ],
    "kernels/draws/api.py": [
        ("(draws >= p) / (1 - p) if p < 1", "(draws >= p) / p if p < 1", "unidrop"),
    ],
    "methods/_shared/dropping.py": [
        ("generator=step.shared_generator(stream)) < value_at", "generator=step.shared_generator(stream)) > value_at",
         "layerdrop:probability"),
    ],
    "methods/_shared/predictions.py": [
        ("total / chosen.sum().clamp(min=1)", "total / chosen.numel()", "rdrop:manual"),
        ('values.sum() if reduction == "sum" else values.mean()', "values.mean()", "rdrop:manual"),
    ],
    "methods/_shared/by_parts.py": [
        ("own, outer.to(value.dtype))[0]", "own)[0]", "token_head:penalty"),
    ],
    "methods/_shared/divergence.py": [
        ('self.divergence("kl") * (1 if self.head == "regression" else 2)', 'self.divergence("kl") * 2', "r3f:manual"),
        ("return self.loss_difference() / 2", "return self.loss_difference()", "r3f:manual"),
        ("torch.logaddexp(a, b) - math.log(2)\n    return 0.5", "torch.logaddexp(a, b)\n    return 0.5", "rdrop:hand"),
        ("torch.logaddexp(a, b) - math.log(2)\n    return (m", "torch.logaddexp(a, b)\n    return (m", "cutoff:manual"),
    ],
    "kernels/random_scaling/reference.py": [
        ("return keep.to(torch.promote_types(dtype, torch.float32)) / share",
         "return keep.to(torch.promote_types(dtype, torch.float32))", "dropconnect mixout child_tuning"),
        ("    weight.copy_(trained)\n", "    pass\n", "dropconnect mixout"),
    ],
    "methods/_shared/weights.py": [
        ("unmix(entry.weight, entry.trained, entry.keep, entry.weight.grad, share)",
         "unmix(entry.weight, entry.trained, entry.keep, None, share)", "dropconnect mixout"),
        ("input_dim = 0 if isinstance(module, Conv1D) else 1", "input_dim = 1", "mixout dropconnect"),
    ],
    "methods/attention_dropout.py": [
        ("remaining.detach().sum(-1", "remaining.sum(-1", "attention_dropout"),
    ],
    "methods/_shared/selection.py": [
        ("everything.numel() - count + 1", "everything.numel() - count", "child_tuning:exactly"),
    ],
    "methods/bi_drop.py": [
        ("sums.sub_(", "sums.add_(", "bi_drop:hand"),
        ("gradient.mul_(kept)", "pass", "bi_drop:hand"),
    ],
    "methods/functional_sam.py": [
        ("(linear - linear.detach()) - ", "", "functional_sam:hand"),
    ],
    "methods/agm.py": [
        ("descending=True", "descending=False", "agm:manual"),
    ],
    "methods/child_tuning.py": [
        ("parameter.copy_(torch.where(child, parameter, values))", "pass", "child_tuning"),
    ],
    "methods/concrete_dropout.py": [
        ("return (1 - z) / (1 - logit.sigmoid())", "return 1 - z", "concrete_dropout"),
        ("self.unit + self.entropy * (", "self.unit - self.entropy * (", "concrete_dropout:formula"),
    ],
    "methods/drophead.py": [
        ("keep * draws.shape[-1] / keep.sum", "keep / keep.sum", "drophead"),
        ("return p * (1 - fraction / warmup)", "return p * fraction / warmup", "drophead"),
    ],
    "methods/headmask.py": [
        ("argsort(descending=True, stable=True)", "argsort(stable=True)", "headmask"),
        (".sum(1).abs().sum(0)", ".abs().sum(1).sum(0)", "headmask"),
        ("return min(count, heads - 1)", "return min(count, heads)", "headmask"),
    ],
    "kernels/mixed_rows/api.py": [
        ("(gradient, back, shares, shares_back), None", "(gradient, back, shares, shares), None", "hidden_mixup"),
    ],
    "kernels/foreach/reference.py": [
        ("torch.stack(norms).square()", "torch.stack(norms)", "sam:hand"),
        ("step.mul_(scale).mul_(scale)", "step.mul_(scale)", "asam:hand"),
        ("_wide(weight).abs().add_(eta)", "_wide(weight).abs()", "asam:hand"),
        ("        step.masked_fill_(factor == 0, 0)", "        pass", "sam:finite"),
        ("torch.where(is_moved, before, weight, out=weight)", "pass", "sam asam"),
        ("mean.lerp_(weight.to(mean.dtype), share.to(mean.dtype) if isinstance(share, Tensor) else share)",
         "mean.copy_(weight)", "ema swa"),
        (".mul_(strength)\n", "\n", "l2_sp"),
        ("    is_moved.fill_(False)", "    pass", "sam:again"),
    ],
    "methods/_shared/ascent.py": [
        ("            restore(weights, trained, is_moved)\n        probe",
         "            pass\n        probe", "sam:again"),
    ],
    "methods/_shared/averages.py": [
        ("torch.promote_types(parameter.dtype, torch.float32)", "parameter.dtype", "ema"),
    ],
    "methods/confidence_penalty.py": [
        ("beta) * negative_entropy", "beta) * -negative_entropy", "confidence_penalty"),
    ],
    "methods/cutoff.py": [
        ("(index < start + count)", "(index <= start + count)", "cutoff"),
    ],
    "methods/ema.py": [
        ("t / (9 + t)) if self.warmup", "t / (10 + t)) if self.warmup", "ema"),
    ],
    "methods/_shared/passes.py": [
        ("(number, shape) if step.is_captured else number", "0", "freelb:before_capture"),
    ],
    "methods/freelb.py": [
        ("(epsilon / size.clamp(min=1e-30)).clamp(max=1)", "1", "freelb:hand"),
        ("/ count.clamp(min=1).sqrt()", "/ count.clamp(min=1)", "freelb:hand"),
        ("step_size * gradient / length.masked_fill(~is_usable, 1)", "step_size * gradient", "freelb:hand"),
    ],
    "methods/hidden_mixup.py": [
        ("return self._shares(step).sum() * (replace", "return (replace", "hidden_mixup"),
        ("back = partners.argsort()", "back = partners", "hidden_mixup"),
    ],
    "methods/hiddenkey.py": [
        ('p_key, "column", 1', 'p_key, "element", 1', "hiddenkey"),
    ],
    "methods/hype.py": [
        ("return [-1, *(block", "return [*(block", "hype"),
    ],
    "methods/l2_sp.py": [
        ("(pretrained, self.alpha), (head, self.beta)", "(pretrained, self.alpha), (head, self.alpha)", "l2_sp"),
    ],
    "methods/label_smoothing.py": [
        ("(uniform - predictions.loss())", "uniform", "label_smoothing"),
    ],
    "methods/neftune.py": [
        ("area.to(draws.dtype).sqrt()", "area.to(draws.dtype)", "neftune"),
    ],
    "methods/reinit.py": [
        ("seams.blocks[-self.blocks :]", "seams.blocks[: self.blocks]", "reinit"),
    ],
    "methods/hiddencut.py": [
        ("(index >= start)", "(index > start)", "hiddencut:spans"),
        ("x.chunk(2)[1]", "x.chunk(2)[0]", "hiddencut:manual"),
        ("return 0.5 * weight * pair_of", "return weight * pair_of", "hiddencut:manual"),
    ],
    "methods/lora_dropout.py": [
        ("torch.arange(step.views, device=step.device)", "torch.zeros(step.views, dtype=torch.long)",
         "lora_dropout:adapters"),
        ("as_factors(draws, p) if self.rescale", "draws >= p if self.rescale", "lora_dropout:adapters"),
    ],
    "methods/mixout.py": [
        ('if ".lora_B." not in linear.name', "", "mixout:lora"),
    ],
    "methods/noisytune.py": [
        ("step.progress.step == 0", "step.progress.step >= 0", "noisytune"),
    ],
    "methods/r3f.py": [
        ("total = weight * pair.both_ways()", "total = pair.both_ways()", "r3f:manual"),
        ("return total + pair.from_mean_to_first()", "return total", "r3f:manual"),
    ],
    "methods/scal.py": [
        ("functional.normalize(", "(lambda x, dim: x)(", "scal:manual"),
    ],
    "methods/_shared/pooling.py": [
        ("real.shape[1] - 1 - real.flip(-1)", "real.shape[1] - real.flip(-1)", "scal:pooling scal:manual"),
    ],
    "methods/_shared/metric_loss.py": [
        ("(distances - own.loss())", "distances", "supcon:equation softtriple:equations"),
    ],
    "methods/supcon.py": [
        ("others & (labels", "(labels", "supcon:equation"),
    ],
    "methods/softtriple.py": [
        ("relaxed - margin * own", "relaxed", "softtriple:equations"),
        ("(classes * count * (count - 1))", "(classes * count)", "softtriple:equations"),
    ],
    "methods/scheduled_dropout.py": [
        ("self.start + slope * fraction", "self.start - slope * fraction", "scheduled_dropout"),
        ("(layer / (layers - 1) if layers > 1", "(layer / layers if layers > 1", "scheduled_dropout"),
    ],
    "methods/smart.py": [
        (".clamp(-epsilon, epsilon)", "", "smart:manual"),
        ("gradient.flatten(1).abs().amax(1)", "gradient.flatten(1).norm(dim=1)", "smart:manual"),
        ("return 1 - value_at(self.beta, step.progress)", "return value_at(self.beta, step.progress)", "smart:manual"),
        ("replace(batch.step, views=1)", "batch.step", "smart:manual"),
        ("self._teacher.load_state(tensors, values)", "pass", "contract:smart"),
    ],
    "methods/swa.py": [
        ("math.ceil(self._past_start(step) / self.every)", "math.ceil(self._past_start(step))", "swa"),
    ],
    "methods/unidrop.py": [
        ("(draws[:, :1] >= p_k)", "(draws[:, :1] < p_k)", "unidrop"),
        ("(real.cumsum(-1) > 1)", "(real.cumsum(-1) > 0)", "unidrop"),
    ],
    "prune/constant_attention.py": [
        ("w.chunk(3)[2], None if b is None else b.chunk(3)[2]",
         "w.chunk(3)[1], None if b is None else b.chunk(3)[1]", "prune:uniform_attention"),
        ("bias = projected if bias is None else bias + projected", "pass", "prune:uniform_attention"),
        ("cached[0] == mask._version and", "", "prune:changed_in_place"),
    ],
    "prune/criteria.py": [
        ("-float(effect.abs().mean())", "float(effect.abs().mean())", "prune:zero_output"),
        ("(cosine * valid).sum()", "cosine.sum()", "prune:similarity"),
        (".sum(1).cpu() * size", ".sum(1).cpu()", "prune:estimates prune:averaged"),
        ("probabilities.double().cpu() * size", "probabilities.double().cpu()", "prune:generator"),
    ],
    "prune/depth.py": [
        ("if (block + 1) % int(1 / rate)", "if block % int(1 / rate)", "layerdrop:kept"),
        ("                    setattr(module, attribute, new)\n", "                    pass\n", "layerdrop"),
    ],
    "methods/supertickets/tickets.py": [
        ("of_site / of_site.norm().clamp(min=1e-30)", "of_site", "supertickets:lowest"),
        ('["loss"] * examples  #', '["loss"]  #', "supertickets:importance"),
        ('products.abs().sum(1) if per == "token" else products.sum(1).abs()',
         "products.abs().sum(1)", "supertickets:importance"),
    ],
    "lab/runs/sampler.py": [
        ("manual_seed(self.seed + self.epoch)", "manual_seed(self.seed)", "sampler"),
        ("argsort(descending=True, stable=True)", "argsort(descending=True, stable=True).sort().values", "sampler"),
        ("torch.randperm(full, generator=generator).tolist()", "range(full)", "sampler"),
    ],
    "lab/runs/trainer.py": [
        ("* self.args.gradient_accumulation_steps *", "*", "sampler"),
        ("            self._metrics_of_part = None\n", "            pass\n", "run_trainer"),
    ],
    "lab/cli/packages.py": [
        ("if word == flag and value in (None, *words[place + 1 : place + 2])", "if word == flag", "packages:flags"),
        ("except (ImportError, ValueError)", "except ZeroDivisionError", "packages:refuses"),
    ],
    "lab/runs/resolve.py": [
        ("copy.copy(resolved.arguments)", "resolved.arguments", "resolve"),
        ('defaults["save_strategy"] = training["eval_strategy"]', "pass", "resolve"),
    ],
    "trainer/checkpoint_folders.py": [
        ("sorted(checkpoints, reverse=True)", "sorted(checkpoints)", "checkpoints:newest_complete"),
    ],
    "utils/manifest.py": [
        ("hashlib.file_digest(file, \"sha256\").hexdigest()", "str(path)", "checkpoints:manifest_check"),
    ],
    "lab/runs/recipe.py": [
        ("math.ceil(STEPS / per_epoch)", "math.ceil(per_epoch / STEPS)", "first_hour:many_passes"),
    ],
    "lab/runs/keeping.py": [
        ("others * p_value(", "p_value(", "keeping:corrects"),
        ("if p <= LEVEL", "if p > LEVEL", "keeping:last_epoch"),
    ],
    "lab/evaluation/thresholds.py": [
        ("_part(answers, places != fold)", "answers", "thresholds:lower"),
        ("int(answers.gold.sum())", "1", "thresholds:few_examples"),
    ],
    "lab/runs/presets.py": [
        ('"patience": 3 if task in _LARGE else 5',
         '"patience": 5 if task in _LARGE else 3', "cli:preset"),
    ],
}  # fmt: skip


def arguments_of(tests: str) -> list[list[str]]:
    """The arguments of pytest, one list for each entry of `tests`."""
    arguments = []
    for entry in tests.split():
        name, _, chosen = entry.partition(":")
        [file] = (ROOT / "tests").rglob(f"test_{name}.py")
        arguments.append([str(file.relative_to(ROOT)), *(["-k", chosen] if chosen else [])])
    return arguments


def fails(tree: Path, tests: str) -> bool:
    """Whether a test fails, in a process that has the heavy libraries from its parent and the package from `tree`."""
    child = os.fork()
    if child == 0:
        os.setsid()
        os.chdir(tree)
        sys.path[:0] = [str(tree / "src")]
        os.environ["PYTHONPATH"] = str(tree / "src")
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1), os.dup2(quiet, 2)
        import pytest

        codes = (pytest.main(["-x", "-q", "-p", "no:cacheprovider", *each]) for each in arguments_of(tests))
        # 5: nothing was selected
        os._exit(int(any(code not in (0, 5) for code in codes)))
    done, status, end = 0, 0, time.monotonic() + LIMIT
    try:
        while not done and time.monotonic() < end:
            done, status = os.waitpid(child, os.WNOHANG)
            time.sleep(0.1)
    finally:  # the tests must not outlive this script
        if not done:
            os.killpg(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) != 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only mutants with this text in their file or in their tests")
    chosen = parser.parse_args().only
    os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", PYTHONDONTWRITEBYTECODE="1")
    os.environ.setdefault("TRITON_INTERPRET", "1")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sys.dont_write_bytecode = True  # two mutants of one second and one length would share a compiled file
    import torch
    import transformers.trainer  # noqa: F401

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        for name in ("src", "tests", "benchmarks", "studies", "docs/tables"):
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", tree)
        mutants = [(file, *mutant) for file, table in MUTANTS.items() for mutant in table]
        mutants = [mutant for mutant in mutants if chosen in mutant[0] or chosen in mutant[3]]
        counts = {"killed": 0, "survived": 0, "stale": 0, "tests fail already": 0}
        sound: dict[str, bool] = {}  # which tests pass without a mutant
        for file, old, new, tests in mutants:
            if tests not in sound:
                sound[tests] = not fails(tree, tests)
            verdict = verdict_on(tree, file, old, new, tests) if sound[tests] else "tests fail already"
            counts[verdict] += 1
            print(f"{verdict:8} {file}: {old.strip()!r} -> {new.strip()!r} ({tests})", flush=True)
    print(", ".join(f"{count} {name}" for name, count in counts.items()))
    sys.exit(int(counts["killed"] < len(mutants)))


def verdict_on(tree: Path, file: str, old: str, new: str, tests: str) -> str:
    """What becomes of a mutant."""
    path = tree / "src" / "attendrop" / file
    before = path.read_text(encoding="utf-8")
    if before.count(old) != 1:
        return "stale"
    path.write_text(before.replace(old, new), encoding="utf-8")
    try:
        return "killed" if fails(tree, tests) else "survived"
    finally:
        path.write_text(before, encoding="utf-8")


if __name__ == "__main__":
    main()
