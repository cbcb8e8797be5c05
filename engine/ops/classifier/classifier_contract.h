// The workspaces of softmax and cross-entropy over rows of logits: a loss for each row.
#ifndef MILEPOST_ENGINE_OPS_CLASSIFIER_CLASSIFIER_CONTRACT_H_
#define MILEPOST_ENGINE_OPS_CLASSIFIER_CLASSIFIER_CONTRACT_H_

#include <cstdint>

namespace milepost::kernels {

// On the CPU, 64-byte aligned: the loss, and whether the row is right.
inline int64_t ClassifierWorkspaceBytes(int64_t rows) {
  return rows * static_cast<int64_t>(sizeof(double) + sizeof(uint8_t));
}

// ---- on a GPU ----
namespace cuda {

// Of a row.
struct RowLoss {
  double loss = 0;
  float target = 0;  // 1: has one
  float correct = 0;
};

inline int64_t ClassifierWorkspaceBytes(int64_t rows) {
  return rows * static_cast<int64_t>(sizeof(RowLoss));
}

}  // namespace cuda

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPS_CLASSIFIER_CLASSIFIER_CONTRACT_H_
