#include "engine/runtime/executor/host_inputs.h"

#include <cstring>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"

namespace milepost::runtime {
namespace {

int64_t Bytes(const graph::Value& value) {
  return graph::Elements(value.shape) * ByteSize(value.dtype);
}

}  // namespace

absl::StatusOr<HostInputs> HostInputs::Find(const plan::StepPlan& plan,
                                            const plan::Program& program, char* arena,
                                            const data::SampleSource& source, int64_t micro_batch) {
  const graph::Graph& graph = program.graph;
  HostInputs inputs;
  inputs.target_fields_.resize(graph.losses.size());
  for (const data::Field& field : source.fields()) {
    const graph::ValueId id = graph.Input(plan::InputName(field.name, micro_batch));
    if (id == graph::kNoValue) {
      return absl::InternalError(absl::StrCat("the model has no input ", field.name));
    }
    const int64_t bytes = Bytes(graph.values[id]);
    if (bytes != plan.options.micro_batch * field.sample_bytes) {
      return absl::InternalError(absl::StrCat("the model's input ", field.name, " has ", bytes,
                                              " bytes, a sample ", field.sample_bytes));
    }
    for (size_t head = 0; head < graph.losses.size(); ++head) {
      const graph::Value& targets = graph.values[graph.losses[head].targets];
      if (targets.name == field.name) inputs.target_fields_[head] = inputs.places_.size();
    }
    const plan::Place& place = program.places[id];
    inputs.places_.push_back({arena + plan.buffers[place.buffer].offset + place.offset,
                              field.sample_bytes, bytes, field.targets != 0});
  }
  const int64_t times = &program == &plan.train ? MicroBatchesOfRun(plan) : 1;
  const int64_t expected = static_cast<int64_t>(graph.inputs.size()) / times;
  if (static_cast<int64_t>(inputs.places_.size()) != expected) {
    return absl::InternalError(
        absl::StrCat("the model has ", expected, " inputs, a sample ", inputs.places_.size()));
  }
  return inputs;
}

void HostInputs::Copy(const std::vector<std::vector<char>>& fields) const {
  for (size_t i = 0; i < places_.size(); ++i) {
    std::memcpy(places_[i].data, fields[i].data(), fields[i].size());
  }
}

absl::Status HostInputs::FetchPadded(const data::SampleSource& source, int64_t first,
                                     int64_t count) const {
  absl::InlinedVector<char*, data::kInlineFields> into;
  for (const Place& place : places_) {
    const int64_t filled = count * place.sample_bytes;
    constexpr int kNoTarget = 0xff;  // in every byte: -1
    std::memset(place.data + filled, place.targets ? kNoTarget : 0,
                static_cast<size_t>(place.bytes - filled));
    into.push_back(place.data);
  }
  return count == 0 ? absl::OkStatus() : source.Fetch(first, count, into);
}

}  // namespace milepost::runtime
