// How an average and the bf16 parameter that it is exchanged for lie in the bytes of both, so that
// nothing is lost: the parameter becomes the average's upper half, rounded by its lower half, which
// tells how to undo it. The average's bytes hold that half and, below it, the parameter.
#ifndef MILEPOST_ENGINE_OPS_PARAMETER_AVERAGE_PARAMETER_AVERAGE_CONTRACT_H_
#define MILEPOST_ENGINE_OPS_PARAMETER_AVERAGE_PARAMETER_AVERAGE_CONTRACT_H_

#include <cstdint>

#include "engine/ops/contract/host_device.h"

namespace milepost::kernels {

struct ExchangedBits {
  uint16_t parameter = 0;
  uint32_t average = 0;
};

MP_HOST_DEVICE ExchangedBits TakeAverage(uint16_t parameter, uint32_t average) {
  const uint32_t lower = average & 0xffffU;
  const uint32_t rounded = (average >> 16) + (lower > 0x8000U ? 1U : 0U);
  return {static_cast<uint16_t>(rounded), lower << 16 | parameter};
}

MP_HOST_DEVICE ExchangedBits ReturnParameter(uint16_t parameter, uint32_t average) {
  const uint32_t lower = average >> 16;
  const uint32_t upper = (parameter - (lower > 0x8000U ? 1U : 0U)) & 0xffffU;
  return {static_cast<uint16_t>(average & 0xffffU), upper << 16 | lower};
}

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPS_PARAMETER_AVERAGE_PARAMETER_AVERAGE_CONTRACT_H_
