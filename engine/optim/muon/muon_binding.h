// What the binders of Muon share.
#ifndef MILEPOST_ENGINE_OPTIM_MUON_MUON_BINDING_H_
#define MILEPOST_ENGINE_OPTIM_MUON_MUON_BINDING_H_

#include "engine/optim/muon/muon_contract.h"
#include "engine/runtime/executor/group_ops.h"

namespace milepost::ops {

inline kernels::MuonMatrix MuonMatrixOf(const plan::FlatGroup& group,
                                        const plan::GroupParameter& p) {
  const bool rounds = group.product_dtype == DType::kBf16;
  return {p.shape[0], p.shape[1], rounds ? DType::kBf16 : DType::kF32};
}

}  // namespace milepost::ops

#endif  // MILEPOST_ENGINE_OPTIM_MUON_MUON_BINDING_H_
