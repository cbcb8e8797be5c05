// Weights that are kept in 4 bits (engine/dtype/nf4.h), as what reads them needs them.
#include "engine/ops/op_definition.h"

namespace milepost::ops {

// Packed matrices, u8[bytes] each -> as many matrices in the compute dtype, one behind the other in
// memory where their sizes allow it. In any phase; planned (plan/passes/nf4_pass.h), not built.
constinit const OpDefinition kUnpackNf4 = {};

}  // namespace milepost::ops
