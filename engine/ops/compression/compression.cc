// Gradients that travel as factors of a low rank (plan/compression.h has the paper and the layout).
// These work on flat groups (plan::FlatGroup), not on values. Before the first step that compresses
// they do nothing, but that kReduceLeftFactors reduces the gradient as it is.
//
// With N ranks, g a rank's part of the gradient, e its error, and Q the factor of the step before:
//   M = N g + e;  P = M Q, summed over the ranks, made orthonormal;  Q = M^T P, their mean;
//   the gradient is P Q^T, and the new error M less that.
#include "engine/ops/op_definition.h"

namespace milepost::ops {

// One group: gradient, error, right factors -> M in the error's place, right factors orthonormal,
// left factors, and beside these the gradients that travel whole.
constinit const OpDefinition kCompressGradients = {.cost = NoCost, .multiplies = true};

// All-reduce (sum) of that.
constinit const OpDefinition kReduceLeftFactors = {.cost = NoCost};

// M, left factors -> left factors orthonormal, right factors.
constinit const OpDefinition kProjectGradients = {.cost = NoCost, .multiplies = true};

// All-reduce (sum) of the right factors.
constinit const OpDefinition kReduceRightFactors = {.cost = NoCost};

// M, both factors -> right factors as the ranks' mean, gradient, error.
constinit const OpDefinition kExpandGradients = {.cost = NoCost, .multiplies = true};

// Where the step is skipped, what it has left in error and right factors is no number: they become
// zeros, with which the next step begins as the first one did.
constinit const OpDefinition kForgetErrors = {.cost = NoCost};

}  // namespace milepost::ops
