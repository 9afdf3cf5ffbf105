"""RecurrentDirection: what converters emit for one direction of an LSTM, a GRU or an RNN."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kernelyard.ir import Expr
from kernelyard.plugins.support.op_emitter import OpEmitter


@dataclass(frozen=True)
class RecurrentDirection:
    """The operands of one direction of a layer, as models have them.

    x: (steps, batch, inputs). weights: (gates * hidden, inputs) and (gates * hidden, hidden). biases: none, or those of
    inputs and states, (gates * hidden,) each. states: (batch, hidden) each. peepholes: (3 * hidden,). attrs: of the
    operator, in all cells. Gates come in the order of the model, which is passed to the methods.
    """

    emitter: OpEmitter
    x: Expr
    weights: tuple[Expr, Expr]
    biases: Sequence[Expr]
    states: Sequence[Expr]
    lengths: Expr | None = None
    peepholes: Expr | None = None
    attrs: Mapping[str, Any] = field(default_factory=dict)

    def lstm(self, gates: Sequence[int], peepholes: Sequence[int] = (), **attrs: Any) -> list[Expr]:
        """Emit nn.lstm. gates: where the model has input, forget, candidate and output; peepholes: input, forget and
        output."""
        optional = self._optional()
        if self.peepholes is not None:
            shape = len(peepholes), self._hidden
            optional = self._lengths(), self.emitter.reshape(self._rows(self.peepholes, peepholes), shape)
        operands = self._gates(gates), self._recurrent(gates), *self.states, *optional
        return self.emitter.ops("nn.lstm", *operands, **self.attrs, **attrs)

    def gru(self, gates: Sequence[int], *, linear_before_reset: bool, **attrs: Any) -> list[Expr]:
        """Emit nn.gru. gates: where the model has update, reset and candidate."""
        *others, candidate = gates
        # The candidate's bias of the states is multiplied by the reset gate then.
        is_apart = linear_before_reset and bool(self.biases)
        bias = self._rows(self.biases[1], [candidate]) if is_apart else self._zeros()
        weights = self._recurrent(others), self._recurrent([candidate])
        given = self._gates(gates, apart=(candidate,) if is_apart else ())
        operands = given, *weights, bias, *self.states, *self._optional()
        return self.emitter.ops("nn.gru", *operands, linear_before_reset=linear_before_reset, **self.attrs, **attrs)

    def rnn(self, **attrs: Any) -> list[Expr]:
        """Emit nn.rnn."""
        operands = self._gates((0,)), self._recurrent((0,)), *self.states, *self._optional()
        return self.emitter.ops("nn.rnn", *operands, **self.attrs, **attrs)

    @property
    def _hidden(self) -> int:
        hidden = self.emitter.shape(self.weights[1])[1]
        return hidden if isinstance(hidden, int) else self.emitter.reject("the size of its state is not fixed")

    def _rows(self, x: Expr, gates: Sequence[int]) -> Expr:
        """Return the rows of some gates, in this order."""
        size = self._hidden
        return self.emitter.concat([self.emitter.slice(x, 0, n * size, (n + 1) * size) for n in gates], 0)

    def _recurrent(self, gates: Sequence[int]) -> Expr:
        """Return the recurrent weights of some gates, as the right side of a product."""
        return self.emitter.permute(self._rows(self.weights[1], gates), (1, 0))

    def _gates(self, gates: Sequence[int], apart: Sequence[int] = ()) -> Expr:
        """Return x W^T plus both biases; apart: gates whose bias of the states the operator adds."""
        emitter = self.emitter
        steps, batch, size = emitter.shape(self.x)
        weights = emitter.permute(self._rows(self.weights[0], gates), (1, 0))
        # All sequences are rows of one matrix.
        total = emitter.op("matmul", emitter.reshape(self.x, (steps * batch, size)), weights)
        if self.biases:
            own, others = self.biases
            parts = [self._zeros() if gate in apart else self._rows(others, [gate]) for gate in gates]
            bias = emitter.op("add", self._rows(own, gates), emitter.concat(parts, 0))
            total = emitter.op("add", total, bias)
        return emitter.reshape(total, (steps, batch, len(gates) * self._hidden))

    def _zeros(self) -> Expr:
        return self.emitter.full(0, (self._hidden,), self.emitter.dtype(self.x))

    def _optional(self) -> tuple[Expr, ...]:
        return () if self.lengths is None else (self.lengths,)

    def _lengths(self) -> Expr:
        """Return the lengths of the sequences, that of all steps where none are given."""
        steps, batch, _ = self.emitter.shape(self.x)
        return self.emitter.full(steps, (batch,), "int64") if self.lengths is None else self.lengths
