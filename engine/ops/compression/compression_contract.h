// What the kernels of both devices agree on.
#ifndef MILEPOST_ENGINE_OPS_COMPRESSION_COMPRESSION_CONTRACT_H_
#define MILEPOST_ENGINE_OPS_COMPRESSION_COMPRESSION_CONTRACT_H_

namespace milepost::kernels {

// Of a row's length before those before it are taken out: less than this is what rounding in fp32
// leaves, and the row depends on them.
inline constexpr double kDependent = 1e-6;

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPS_COMPRESSION_COMPRESSION_CONTRACT_H_
