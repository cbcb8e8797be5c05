#include "engine/runtime/executor/host_inputs.h"

#include <cstring>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace milepost::runtime {
namespace {

int64_t Bytes(const graph::Value& value) {
  return graph::Elements(value.shape) * ByteSize(value.dtype);
}

}  // namespace

absl::StatusOr<HostInputs> HostInputs::Find(const plan::StepPlan& plan,
                                            const plan::Program& program, char* arena,
                                            const data::SampleSource& source, int64_t micro_batch,
                                            int context_rank) {
  const graph::Graph& graph = program.graph;
  HostInputs inputs;
  inputs.target_fields_.resize(graph.losses.size());
  for (const data::Field& field : source.fields()) {
    const graph::ValueId id = graph.Input(plan::InputName(field.name, micro_batch));
    if (id == graph::kNoValue) {
      return absl::InternalError(absl::StrCat("the model has no input ", field.name));
    }
    const int64_t bytes = Bytes(graph.values[id]);
    const int64_t whole = plan.options.micro_batch * field.sample_bytes;
    const int64_t parts = bytes > 0 && bytes != whole ? plan.options.context : 1;
    if (bytes * parts != whole) {
      return absl::InternalError(absl::StrCat("the model's input ", field.name, " has ", bytes,
                                              " bytes, a sample ", field.sample_bytes));
    }
    for (size_t head = 0; head < graph.losses.size(); ++head) {
      const graph::Value& targets = graph.values[graph.losses[head].targets];
      if (targets.name == field.name) inputs.target_fields_[head] = inputs.places_.size();
    }
    const plan::Place& place = program.places[id];
    inputs.places_.push_back(
        {.data = arena + plan.buffers[place.buffer].offset + place.offset,
         .sample_bytes = field.sample_bytes,
         .own_begin = parts > 1 ? context_rank * field.sample_bytes / parts : 0,
         .own_bytes = field.sample_bytes / parts,
         .bytes = bytes,
         .targets = field.targets != 0});
    // FetchPadded is for evaluation.
    const bool fetches = parts > 1 && &program != &plan.train;
    inputs.fetched_.emplace_back(static_cast<size_t>(fetches ? whole : 0));
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
    const auto size = static_cast<int64_t>(fields[i].size());
    CopySamples(places_[i], fields[i].data(), size / places_[i].sample_bytes);
  }
}

void HostInputs::CopySamples(const Place& place, const char* samples, int64_t count) {
  if (place.own_bytes == place.sample_bytes) {
    std::memcpy(place.data, samples, static_cast<size_t>(count * place.sample_bytes));
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(place.data + i * place.own_bytes,
                samples + i * place.sample_bytes + place.own_begin,
                static_cast<size_t>(place.own_bytes));
  }
}

absl::Status HostInputs::FetchPadded(const data::SampleSource& source, int64_t first,
                                     int64_t count) const {
  absl::InlinedVector<char*, data::kInlineFields> into;
  for (size_t i = 0; i < places_.size(); ++i) {
    const Place& place = places_[i];
    const int64_t filled = count * place.own_bytes;
    constexpr int kNoTarget = 0xff;  // in every byte: -1
    std::memset(place.data + filled, place.targets ? kNoTarget : 0,
                static_cast<size_t>(place.bytes - filled));
    into.push_back(fetched_[i].empty() ? place.data : fetched_[i].data());
  }
  if (count == 0) return absl::OkStatus();
  MP_RETURN_IF_ERROR(source.Fetch(first, count, into));
  for (size_t i = 0; i < places_.size(); ++i) {
    if (!fetched_[i].empty()) CopySamples(places_[i], fetched_[i].data(), count);
  }
  return absl::OkStatus();
}

}  // namespace milepost::runtime
