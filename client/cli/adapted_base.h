// The model that adapters adapt, as its Hugging Face folder has it: each parameter that is not
// trained, under its own name.
//
//   MP_ASSIGN_OR_RETURN(const AdaptedBase base, AdaptedBase::Open(spec, "models/Qwen3", print));
//   MP_RETURN_IF_ERROR(base.Find("model.layers.0.mlp.up_proj.weight")->ReadF32(0, 64, values));
//   MP_ASSIGN_OR_RETURN(const auto norms, base.Norms("model.layers.0.mlp.up_proj"));
//
// Blocks on the disk. Thread-safe.
#ifndef MILEPOST_CLIENT_CLI_ADAPTED_BASE_H_
#define MILEPOST_CLIENT_CLI_ADAPTED_BASE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/graph/graph.h"
#include "engine/state/resized_tensor.h"
#include "engine/state/safetensors.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::client {

// A parameter in a file.
struct StoredWeight {
  graph::Shape shape;  // the model's
  std::shared_ptr<const state::SafetensorsFile> file;
  std::shared_ptr<const state::SafetensorsTensor> tensor;
  std::optional<state::ResizedTensor> resized = std::nullopt;  // where a vocabulary is larger

  int64_t rows() const { return shape[0]; }
  int64_t columns() const;  // elements of a row
  absl::Status ReadF32(int64_t begin, int64_t end, float* values) const;
};

// INVALID_ARGUMENT, with both shapes: the file's tensor is of another shape.
absl::Status CheckStoredShape(const StoredWeight& weight);

// Called with rows [first, first + count) of the weight, which it may change.
using OnRows =
    std::function<absl::Status(int64_t first, int64_t count, std::vector<float>& values)>;
// A megabyte or so at a time.
absl::Status ForPieces(const StoredWeight& weight, const OnRows& on_rows);

// Sums of squares by output of a layer's weight: its rows, or the columns where it is [in, out].
class OutputSquares {
 public:
  OutputSquares(int64_t outputs, bool outputs_are_columns)
      : sums_(static_cast<size_t>(outputs)), columns_(outputs_are_columns) {}
  void Add(int64_t first_row, int64_t rows, const std::vector<float>& values);
  std::vector<double> Norms() const;

 private:
  std::vector<double> sums_;
  bool columns_;
};

class AdaptedBase {
 public:
  // `fingerprint`: of its weights (data::FingerprintOf); 0: not known. INVALID_ARGUMENT: it is of
  // another config, or lacks a tensor. FAILED_PRECONDITION: it has other weights than those that
  // were adapted.
  static absl::StatusOr<AdaptedBase> Open(const v1::ModelSpec& model, const std::string& folder,
                                          uint64_t fingerprint);

  const graph::Graph& graph() const { return graph_; }  // of the model with its adapters
  // Null: it is trained.
  const StoredWeight* Find(absl::string_view name) const;
  // GPT-2's layers have weights [in, out].
  bool outputs_are_columns() const { return outputs_are_columns_; }
  // |W_o| of each output of a layer that is adapted. DATA_LOSS: there is no such layer.
  absl::StatusOr<std::vector<double>> Norms(absl::string_view layer) const;

 private:
  absl::Status FindWeights(const v1::ModelSpec& model, const state::SafetensorsFolder& files);
  absl::Status CheckFingerprint(const std::string& folder, uint64_t fingerprint) const;

  graph::Graph graph_;
  bool outputs_are_columns_ = false;
  absl::flat_hash_map<std::string, StoredWeight> weights_;
};

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_ADAPTED_BASE_H_
