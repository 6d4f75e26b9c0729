"""A model as a PyTorch network, and back.

The network executes the ONNX graph node by node. Its parameters are the graph's initializers, so names stay the
same: a node of the network is the node of that name in the file.

Any PyTorch module can become a model, too.
"""

from __future__ import annotations

import contextlib
import itertools
import tempfile
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from framefit.core.model import Listing, Model, Node, folded, group_nodes, listing, rebatched, with_weights
from framefit.errors import InputError, UnsupportedError
from framefit.training.extra import torch
from framefit.training.operators import OPERATORS, Compute, Site

__all__ = ["Network", "load_state", "observe", "state", "to_model", "to_torch"]


Array = npt.NDArray[Any]
Tensor = Any  # torch.Tensor
nn = torch.nn


# Operator -> inputs that are weights, of other operators all inputs of more than one element.
_WEIGHTS = {
    "Conv": (1, 2),
    "ConvTranspose": (1, 2),
    "Gather": (0,),
    "Gemm": (0, 1, 2),
    "MatMul": (0, 1),
    "PRelu": (1,),
    "LayerNormalization": (1, 2),
    "InstanceNormalization": (1, 2),
    "GroupNormalization": (1, 2),
    "LSTM": (1, 2, 3),
    "GRU": (1, 2, 3),
    "RNN": (1, 2, 3),
}
_SUMS = {"Add": (0, 1), "Mul": (0, 1), "Sub": (0, 1), "Div": (1,)}
_NAMES = {1: "weight", 2: "bias"}
_MOST_AXES = 256  # combinations of axes that are tried, see Network.join_inputs


def to_torch(model: Model) -> Network:
    """Make a network that computes the same as ``model`` on any batch, and can be trained.

    Float initializers that convolutions, products, normalisations and sums read are parameters;
    single numbers and shapes are constants. Batch normalisations are modules with running statistics.

    Raises:
        UnsupportedError: an operator cannot be trained, in general or in this form, or constants fix the
            batch; the message names the node.
    """
    network = Network(model)
    if len(model.inputs) > 1:
        network.join_inputs()
        return network
    operations = [module for module in network.layers if isinstance(module, Operation)]
    reshapes = [module.node.name for module in operations if module.node.op == "Reshape"]
    if reshapes and not _any_batch(network):
        raise UnsupportedError(
            f"the batch dimension cannot be traced through its reshapes ({', '.join(map(repr, reshapes))})",
            where=model.name,
            remedy="export it with a dynamic batch, load that with a batch of 13, and call rebatched(model, 1)",
        )
    return network


def to_model(network: Network, *, fold: bool = False) -> Model:
    """Make a model of the network with its present weights and statistics.

    Args:
        network: from :func:`to_torch`.
        fold: fold batch normalisations into the weights before them.

    Nodes that modules replace stay as they were: modules have no place in a model.
    """
    part_names = {f"{name}/{key}" for name, part in network.parts.items() for key, _ in part.named_parameters()}
    made = with_weights(
        network.model, {name: array for name, array in state(network).items() if name not in part_names}
    )
    return folded(made) if fold else made


class _Step(NamedTuple):
    """The execution of one node.

    Attributes:
        module: executes the node.
        reads: tensors of its inputs.
        writes: its outputs.
        last: tensors that no later node reads.
    """

    module: Any
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    last: tuple[str, ...]


class Operation(torch.nn.Module):  # type: ignore[misc]
    """A node without statistics: its weights, and a function of all its inputs."""

    def __init__(self, node: Node, compute: Compute, held: Mapping[int, Tensor]) -> None:
        super().__init__()
        self.node = node
        self._compute = compute
        self._places = []
        for place, operand in enumerate(node.inputs):
            name = _NAMES.get(place, f"input_{place}") if place in held else None
            if name is not None and isinstance(held[place], nn.Parameter):
                self.register_parameter(name, held[place])
            elif name is not None:
                self.register_buffer(name, held[place], persistent=False)
            self._places.append((name, operand is not None))

    def precede(self, changes: Sequence[Callable[[Tensor], Tensor] | None]) -> None:
        """Let a function change each input before it is used; ``None``: it stays as it is."""
        compute = self._compute

        def changed(*operands: Tensor) -> Any:
            return compute(
                *(x if x is None or change is None else change(x) for x, change in zip(operands, changes, strict=True))
            )

        self._compute = changed

    def forward(self, *data: Tensor) -> Any:
        """The node's output, or a tuple of them; ``data``: its inputs that are not constants, in order."""
        rest = iter(data)
        operands = [
            getattr(self, name) if name is not None else next(rest) if present else None
            for name, present in self._places
        ]
        return self._compute(*operands)

    def extra_repr(self) -> str:
        """The operator and the node's name."""
        return f"{self.node.op} {self.node.name!r}"


class Network(torch.nn.Module):  # type: ignore[misc]
    """A graph that PyTorch executes; make one with :func:`to_torch`.

    Attributes:
        model: the original model, with its original weights.
        weights: initializer -> parameter.
        norms: node -> its ``BatchNorm`` module.
        parts: modules that replace nodes, by the names given to :meth:`put`.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.parts: dict[str, Any] = {}
        written = listing(model)
        self._tensors = _held(written, model)
        self.weights = {name: t for name, t in self._tensors.items() if isinstance(t, nn.Parameter)}
        self.norms: dict[str, Any] = {}
        self._modules_by_name: dict[str, Any] = {}
        self._statistics: dict[str, tuple[str, str]] = {}  # initializer -> batch norm's node, buffer
        self.layers = nn.ModuleList()
        steps = [self._enter(node, written) for node in written.nodes]
        outputs = [tensor.name for tensor in model.outputs]
        self._steps = _with_ends(steps, outputs)
        self._inputs = [tensor.name for tensor in model.inputs]
        self._outputs = outputs
        self._batch_axes: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())  # of inputs and outputs, see join_inputs
        self._logits = _before_softmax(written.nodes, outputs[0])

    def forward(self, *inputs: Tensor) -> Any:
        """The model's output, or a tuple of them.

        Args:
            inputs: one for each input of the model, in order, with any batch; or one whose rows are examples, each
                with the numbers of all inputs one behind the other: the outputs then have the batch first.
        """
        values = self._run(inputs, keep=self._outputs)
        outputs = tuple(values[name] for name in self._outputs)
        if len(inputs) < len(self._inputs):
            outputs = tuple(each.movedim(axis, 0) for each, axis in zip(outputs, self._batch_axes[1], strict=True))
        return outputs[0] if len(outputs) == 1 else outputs

    def join_inputs(self) -> None:
        """Find the axis of the batch in each of several inputs and outputs, by running two examples at once.

        Where no axes give two examples what each has alone, only separate inputs can be given.
        """
        candidates = [
            [axis for axis, size in enumerate(tensor.shape or ()) if size == 1] for tensor in self.model.inputs
        ]
        random = np.random.default_rng(0)  # of whole numbers 0 and 1, which are in every vocabulary
        rows = torch.from_numpy(2 * random.random((2, *self.model.example_shape), np.float32))
        self.eval()
        with torch.inference_mode():
            for axes in itertools.islice(itertools.product(*candidates), _MOST_AXES):
                self._batch_axes = (axes, ())
                alone = [self._all_outputs(rows[place : place + 1]) for place in (0, 1)]
                try:
                    both = self._all_outputs(rows)
                except (RuntimeError, IndexError):  # sizes do not match
                    continue
                held = [_batch_axis(*each) for each in zip(*alone, both, strict=True)]
                if None not in held:
                    self._batch_axes = (axes, tuple(axis for axis in held if axis is not None))
                    break
            else:
                self._batch_axes = ((), ())
        self.train()

    def _all_outputs(self, rows: Tensor) -> list[Tensor]:
        values = self._run((rows,), keep=self._outputs)
        return [values[name] for name in self._outputs]

    def _taken_apart(self, rows: Tensor) -> tuple[Tensor, ...]:
        """The inputs of examples that are rows of all their numbers."""
        if rows.shape[1:] != self.model.example_shape:
            raise InputError(
                f"got one input of {' x '.join(map(str, rows.shape))}, the model has {len(self._inputs)}",
                where=self.model.name,
            )
        if not self._batch_axes[0]:
            takes = ", ".join(
                f"{tensor.name} {' x '.join(map(str, tensor.shape or ()))}" for tensor in self.model.inputs
            )
            raise UnsupportedError(
                f"no axis of the inputs ({takes}) lets several examples run at once",
                where=self.model.name,
                remedy="give what never changes with --constant INPUT=NUMBER",
            )
        taken = []
        for tensor, axis in zip(self.model.inputs, self._batch_axes[0], strict=True):
            rest = [size for place, size in enumerate(tensor.shape or ()) if place != axis]
            part = rows[:, self.model.columns[tensor.name]].reshape(len(rows), *rest)
            taken.append(part.movedim(0, axis).to(getattr(torch, tensor.dtype)))
        return tuple(taken)

    def logits(self, x: Tensor) -> Tensor:
        """Scores of the classes: the first output, before a final softmax; N x classes.

        Raises:
            InputError: the first output is not a row of numbers for each example.
        """
        logits = self._run((x,), keep=(self._logits,))[self._logits]
        if self._batch_axes[1]:
            logits = logits.movedim(self._batch_axes[1][0], 0)
        logits = logits.flatten(1) if logits.dim() > 1 and logits.shape[2:].numel() == 1 else logits
        if logits.dim() != 2:
            raise InputError(
                f"output {self._outputs[0]!r} is {' x '.join(map(str, logits.shape))}, not a row of classes",
                where=self.model.name,
                remedy="give a classifier whose first output is N x classes",
            )
        return logits

    def put(self, source: str, target: str, name: str, module: Any) -> None:
        """Replace the nodes between two tensors by a module; its parameters are trained with the others.

        Args:
            source: input tensor of the module.
            target: output tensor of the module.
            name: of the module; its parameters are weights ``name/parameter``, which the model does not have.
            module: it must work with any batch.

        Raises:
            InputError: the second tensor depends on others than the first, or other nodes read tensors between them.
        """
        gone = {id(self._modules_by_name.pop(node, None)) for node in group_nodes(self.model, source, target)}
        place = next(i for i, step in reversed(list(enumerate(self._steps))) if id(step.module) in gone)
        steps = [*self._steps[:place], _Step(module, (source,), (target,), ()), *self._steps[place + 1 :]]
        steps = [step for step in steps if id(step.module) not in gone]
        self._steps = _with_ends(steps, self._outputs)
        self.layers = nn.ModuleList(step.module for step in steps)
        self._modules_by_name[name] = self.parts[name] = module
        self.norms = {node: norm for node, norm in self.norms.items() if id(norm) not in gone}
        self._statistics = {key: place for key, place in self._statistics.items() if place[0] in self.norms}
        left = {id(parameter) for parameter in self.parameters()}
        self.weights = {key: weight for key, weight in self.weights.items() if id(weight) in left}
        self.weights |= {f"{name}/{key}": parameter for key, parameter in module.named_parameters()}

    def node(self, name: str) -> Any:
        """The module that executes a node; its forward hooks receive the node's data as tensors.

        Raises:
            InputError: there is no such node.
        """
        if name not in self._modules_by_name:
            raise InputError(f"no node {name!r}", where=self.model.name, remedy="see listing(model).nodes for names")
        return self._modules_by_name[name]

    def _run(self, inputs: tuple[Tensor, ...], keep: Collection[str]) -> dict[str, Tensor]:
        """Tensors ``keep``, and those that still exist when the last of them is made."""
        if len(inputs) == 1 < len(self._inputs):
            inputs = self._taken_apart(inputs[0])
        if len(inputs) != len(self._inputs):
            raise InputError(f"got {len(inputs)} inputs, the model has {len(self._inputs)}", where=self.model.name)
        values: dict[str, Tensor] = dict(zip(self._inputs, map(_image_layout, inputs), strict=True))
        missing = {name for name in keep if name not in values and name not in self._tensors}
        for step in self._steps:
            if not missing:
                break
            made = step.module(*[values[name] for name in step.reads])
            if len(step.writes) == 1:
                values[step.writes[0]] = made
            else:
                values.update(zip(step.writes, made, strict=True))
            missing.difference_update(step.writes)
            for name in step.last:
                if name not in keep:
                    del values[name]
        return values | {name: self._tensors[name] for name in keep if name not in values}

    def _enter(self, node: Node, written: Listing) -> _Step:
        held = {
            place: self._tensors[operand.name]
            for place, operand in enumerate(node.inputs)
            if operand is not None and operand.name in self._tensors
        }
        data = tuple(o.name for place, o in enumerate(node.inputs) if o is not None and place not in held)
        if node.op == "BatchNormalization":
            module = self._norm(node, held)
        elif node.op == "Dropout":
            module = nn.Dropout(_ratio(node, written))
            data = data[:1]
        else:
            module = _operation(node, written, held)
        self.layers.append(module)
        self._modules_by_name[node.name] = module
        writes = tuple(output.name for output in node.outputs)
        return _Step(module, data, writes[:1] if node.op == "Dropout" else writes, ())

    def _norm(self, node: Node, held: Mapping[int, Tensor]) -> Any:
        source = node.inputs[0]
        rank = len(source.shape) if source is not None and source.shape is not None else 0
        if rank not in (2, 3, 4, 5) or set(held) != {1, 2, 3, 4} or len(node.outputs) > 1:
            raise Site(node, {}, 0).refused("its statistics are not constants, or its input has no channels")
        kind = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[rank]
        epsilon, momentum = (node.attributes.get(*pair) for pair in (("epsilon", 1e-5), ("momentum", 0.9)))
        module = kind(len(held[1]), eps=epsilon, momentum=1 - momentum)  # type: ignore[operator]  # of numbers
        module.weight, module.bias = held[1], held[2]
        module.running_mean, module.running_var = held[3].clone(), held[4].clone()
        for place, buffer in ((3, "running_mean"), (4, "running_var")):
            operand = node.inputs[place]
            assert operand is not None
            self._statistics[operand.name] = (node.name, buffer)
        self.norms[node.name] = module
        return module


def state(network: Network) -> dict[str, Array]:
    """Parameters and running statistics, by initializer."""
    arrays = {name: parameter.detach().numpy().copy() for name, parameter in network.weights.items()}
    for name, (node, buffer) in network._statistics.items():  # noqa: SLF001 - of this module
        arrays[name] = getattr(network.norms[node], buffer).detach().numpy().copy()
    return arrays


def load_state(network: Network, arrays: Mapping[str, Array]) -> None:
    """Set the arrays that :func:`state` returned.

    Raises:
        InputError: the network does not have a name or shape.
    """
    with torch.no_grad():
        for name, array in arrays.items():
            if name in network.weights:
                target = network.weights[name]
            elif name in network._statistics:  # noqa: SLF001 - of this module
                node, buffer = network._statistics[name]  # noqa: SLF001
                target = getattr(network.norms[node], buffer)
            else:
                raise InputError(f"no weight {name!r}", where=network.model.name)
            if tuple(target.shape) != np.shape(array):
                raise InputError(
                    f"weight {name!r} is {tuple(target.shape)}, not {np.shape(array)}", where=network.model.name
                )
            target.copy_(torch.from_numpy(np.array(array, order="C")))


def observe(
    network: Network,
    x: Array,
    watch: Callable[[str, tuple[Tensor, ...], Tensor], None],
    nodes: Collection[str],
    batch: int = 128,
) -> None:
    """Run examples in evaluation mode, and pass the inputs and outputs of nodes to a function.

    Args:
        network: it is not changed.
        x: inputs, float32, N x ...
        watch: called with a node's name, its inputs that are not constants, and its output, for each batch.
        nodes: names of the nodes.
        batch: examples at once.
    """
    handles = [
        network.node(name).register_forward_hook(
            lambda module, inputs, output, name=name: watch(name, inputs, output)  # noqa: ARG005
        )
        for name in nodes
    ]
    training = network.training
    network.eval()
    try:
        with torch.inference_mode():
            for first in range(0, len(x), batch):
                network(torch.from_numpy(np.ascontiguousarray(x[first : first + batch])))
    finally:
        network.train(training)
        for handle in handles:
            handle.remove()


def _any_batch(network: Network) -> bool:
    """Whether two examples in one batch give the same as each alone."""
    network.eval()
    random = np.random.default_rng(0)
    one, another = (
        [torch.from_numpy(np.asarray(random.standard_normal(t.shape or ()), t.dtype)) for t in network.model.inputs]
        for _ in range(2)
    )
    try:
        with torch.inference_mode():
            expected = [network(*one), network(*another)]
            outputs = network(*(torch.cat(pair) for pair in zip(one, another, strict=True)))
    except RuntimeError:  # sizes do not match
        return False
    finally:
        network.train()
    parts = zip(*map(_tuple, (*expected, outputs)), strict=True)
    return all(
        alike(torch.cat((first, second)) if both.shape != first.shape else first, both) for first, second, both in parts
    )


def _batch_axis(first: Tensor, second: Tensor, both: Tensor) -> int | None:
    """The axis along which an output of two examples joins what each has alone; ``None``: there is none."""
    for axis in range(both.dim()):
        if both.shape[axis] == 2 * first.shape[axis] and alike(torch.cat((first, second), dim=axis), both):
            return axis
    return None


def alike(expected: Tensor, computed: Tensor) -> bool:
    """Whether two outputs are equal up to the order of sums in float32: within 1e-3 of the largest."""
    if expected.shape != computed.shape:
        return False
    first, second = (torch.nan_to_num(part.double()) for part in (expected, computed))
    return not first.numel() or float((first - second).abs().max()) <= 1e-3 * float(first.abs().max())


def _tuple(outputs: Any) -> tuple[Tensor, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def _held(written: Listing, model: Model) -> dict[str, Tensor]:
    """Initializers as parameters and constants."""
    trained: set[str] = set()
    for node in written.nodes:
        if node.domain not in ("", "ai.onnx") or (node.op not in OPERATORS and node.op not in _MODULES):
            domain = f" of {node.domain}" if node.domain else ""
            raise Site(node, {}, written.opset).refused(f"an operator{domain} that cannot be trained")
        places = (1, 2) if node.op == "BatchNormalization" else _WEIGHTS.get(node.op, _SUMS.get(node.op, ()))
        for place in places:
            operand = node.inputs[place] if place < len(node.inputs) else None
            array = None if operand is None else written.arrays.get(operand.name)
            if operand is None or array is None or array.dtype.kind != "f":
                continue
            if node.op not in _SUMS or array.size > 1:
                trained.add(operand.name)
    held: dict[str, Tensor] = {}
    for name, array in written.arrays.items():
        if array.dtype.kind not in "fiub":
            raise UnsupportedError(f"initializer {name!r} is {array.dtype}", where=model.name)
        tensor = _image_layout(torch.from_numpy(np.array(array)))
        held[name] = nn.Parameter(tensor) if name in trained else tensor
    return held


_MODULES = ("BatchNormalization", "Dropout")


def _operation(node: Node, written: Listing, held: Mapping[int, Tensor]) -> Operation:
    fixed = {
        place: written.arrays[operand.name]
        for place, operand in enumerate(node.inputs)
        if operand is not None and place in held
    }
    return Operation(node, OPERATORS[node.op](Site(node, fixed, written.opset)), held)


def _ratio(node: Node, written: Listing) -> float:
    operand = node.inputs[1] if len(node.inputs) > 1 else None
    if operand is not None and operand.name in written.arrays:
        return float(written.arrays[operand.name])
    ratio = node.attributes.get("ratio", 0.5)
    assert isinstance(ratio, int | float)
    return ratio


def _with_ends(steps: list[_Step], outputs: Collection[str]) -> list[_Step]:
    """Add to each step the tensors that no later step reads."""
    last = {name: index for index, step in enumerate(steps) for name in (*step.writes, *step.reads)}
    ends: dict[int, list[str]] = {}
    for name, index in last.items():
        if name not in outputs:
            ends.setdefault(index, []).append(name)
    return [step._replace(last=tuple(ends.get(index, ()))) for index, step in enumerate(steps)]


def _before_softmax(nodes: tuple[Node, ...], output: str) -> str:
    """The input of a final softmax for ``output``; the output itself if there is none."""
    by_output = {tensor.name: node for node in nodes for tensor in node.outputs}
    node = by_output.get(output)
    while node is not None and node.op in ("Identity", "Softmax", "LogSoftmax") and node.inputs[0] is not None:
        output = node.inputs[0].name
        node = by_output.get(output)
    return output


def _image_layout(x: Tensor) -> Tensor:
    """Store images and kernels with channels last: a quarter faster on a processor than channels first."""
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x


_OPSET = 17
_BATCH = 13  # for the trace: a number that is unlikely as another size


def from_module(module: Any, input_shape: Sequence[int], *, name: str = "network") -> Model:
    """Export a ``torch.nn.Module`` in evaluation mode, with its batch normalisations.

    PyTorch's exporter for traced modules is used, which needs nothing but PyTorch and onnx. Parameters keep
    the names of the module's ``state_dict``, nodes are named after their modules.

    Args:
        module: it has one input, float32; its weights are copied, and it is not changed.
        input_shape: of one example, without the batch.
        name: of the model.

    Raises:
        InputError: it cannot be exported, or the exported graph computes other results (if the module's control
            flow depends on its data, for example).
        UnsupportedError: an operator cannot be trained here.
    """
    if not isinstance(module, torch.nn.Module):
        raise InputError(f"a {type(module).__name__} is not a torch.nn.Module", where=name, remedy="return the module")
    training = module.training
    module.eval()
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((_BATCH, *input_shape), np.float32))
    try:
        with torch.no_grad():
            expected, alone = module(x), module(x[:1])
            model = rebatched(_exported(module, x, name), 1)
    except Exception as error:  # the user's module and the exporter may raise anything
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise InputError(
            f"the module cannot be exported for an input of {' x '.join(map(str, input_shape))}: {reason}",
            where=name,
            remedy="check its input's shape; it takes one tensor and computes with tensors only",
        ) from error
    finally:
        module.train(training)
    network = to_torch(model).eval()
    with torch.no_grad():
        pairs = ((expected, network(x)), (alone, network(x[:1])))
    if not all(alike(_first(reference), _first(computed)) for reference, computed in pairs):
        raise InputError(
            "the exported graph computes other results than the module",
            where=name,
            remedy="its control flow must not depend on data or on the batch size",
        )
    return model


def _first(outputs: Any) -> Any:
    return outputs if isinstance(outputs, torch.Tensor) else next(iter(outputs))


def _exported(module: Any, x: Any, name: str) -> Model:
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), _single_operators():
        warnings.simplefilter("ignore")  # about the exporter's age, and about constants in a trace
        path = Path(folder) / "module.onnx"
        torch.onnx.export(
            module,
            (x,),
            str(path),
            dynamo=False,
            training=torch.onnx.TrainingMode.PRESERVE,  # evaluation mode would fold batch normalisations
            do_constant_folding=False,  # weights keep their names
            opset_version=_OPSET,
            input_names=["input"],
            output_names=["output"],
        )
        return Model.load(path, name=name)


@contextlib.contextmanager
def _single_operators() -> Iterator[None]:
    """Use single operators for PyTorch's transformer layers, not a fused one that ONNX does not have."""
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
