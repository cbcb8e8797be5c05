// How many states an optimizer may keep of each parameter, on both devices.
#ifndef MILEPOST_ENGINE_OPS_CONTRACT_OPTIMIZER_STATES_H_
#define MILEPOST_ENGINE_OPS_CONTRACT_OPTIMIZER_STATES_H_

namespace milepost::kernels {

inline constexpr int kMaxStates = 4;

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPS_CONTRACT_OPTIMIZER_STATES_H_
