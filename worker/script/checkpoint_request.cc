#include "worker/script/checkpoint_request.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace milepost::worker {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMostStep = 1'000'000'000;  // as the coordinator has it

absl::Status Wrong(absl::string_view what) { return absl::InvalidArgumentError(what); }

absl::StatusOr<Json> ParseObject(absl::string_view body) {
  Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return Wrong("expected a JSON object");
  return json;
}

// A whole number in [0, most] that fits.
std::optional<int64_t> Count(const Json& value, int64_t most) {
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned() &&
      value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return std::nullopt;
  }
  const auto number = value.get<int64_t>();
  if (number < 0 || number > most) return std::nullopt;
  return number;
}

absl::StatusOr<int64_t> CountIn(const Json& object, const char* name, int64_t most) {
  const auto found = object.find(name);
  const auto number = found == object.end() ? std::nullopt : Count(*found, most);
  if (!number) return Wrong(absl::StrCat(name, ": expected a whole number in [0, ", most, "]"));
  return *number;
}

bool FlagIn(const Json& object, const char* name, bool absent) {
  const auto found = object.find(name);
  return found != object.end() && found->is_boolean() ? found->get<bool>() : absent;
}

absl::StatusOr<const Json*> ListIn(const Json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_array()) return Wrong(absl::StrCat(name, ": not a list"));
  return &*found;
}

absl::StatusOr<ScriptMemory> MemoryIn(const Json& object) {
  const auto found = object.find("memory");
  if (found == object.end() || !found->is_object()) return Wrong("memory: expected an object");
  constexpr int64_t kMostInt = std::numeric_limits<int>::max();
  MP_ASSIGN_OR_RETURN(const int64_t pid, CountIn(*found, "pid", kMostInt));
  MP_ASSIGN_OR_RETURN(const int64_t fd, CountIn(*found, "fd", kMostInt));
  MP_ASSIGN_OR_RETURN(const int64_t bytes, CountIn(*found, "bytes", int64_t{1} << 56));
  return ScriptMemory{static_cast<int>(pid), static_cast<int>(fd), bytes};
}

absl::StatusOr<v1::TensorInfo> TensorOf(const Json& json) {
  const bool whole = json.is_array() && json.size() == 4 && json[0].is_string() &&
                     json[1].is_string() && json[2].is_string() && json[3].is_array();
  if (!whole) return Wrong("expected [name, kind, dtype, shape]");
  v1::TensorInfo tensor;
  tensor.set_name(json[0].get<std::string>());
  tensor.set_kind(json[1].get<std::string>());
  tensor.set_dtype(json[2].get<std::string>());
  for (const Json& dimension : json[3]) {
    const auto size = Count(dimension, std::numeric_limits<int64_t>::max());
    if (!size) return Wrong("the shape is not of whole numbers");
    tensor.add_shape(*size);
  }
  return tensor;
}

absl::StatusOr<MemoryPiece> PieceOf(const Json& json, const state::StateLayout& layout,
                                    int64_t memory_bytes) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  std::vector<int64_t> numbers;
  for (size_t i = 0; json.is_array() && json.size() == 4 && i < 4; ++i) {
    if (const auto number = Count(json[i], kMost)) numbers.push_back(*number);
  }
  if (numbers.size() != 4) return Wrong("expected [tensor, begin, end, offset]");
  const auto tensors = static_cast<int64_t>(layout.tensors().size());
  if (numbers[0] >= tensors) return Wrong(absl::StrCat("there are ", tensors, " tensors"));
  MemoryPiece piece = {{static_cast<int32_t>(numbers[0]), numbers[1], numbers[2]}, numbers[3]};
  MP_RETURN_IF_ERROR(layout.CheckInterval(piece.interval));
  const int64_t bytes = layout.BytesOf(piece.interval);
  if (piece.offset > memory_bytes || bytes > memory_bytes - piece.offset) {
    return Wrong(absl::StrCat("bytes [", piece.offset, ", +", bytes, ") are outside the memory"));
  }
  return piece;
}

absl::StatusOr<std::vector<MemoryPiece>> PiecesIn(const Json& object,
                                                  const state::StateLayout& layout,
                                                  int64_t memory_bytes) {
  MP_ASSIGN_OR_RETURN(const Json* list, ListIn(object, "pieces"));
  std::vector<MemoryPiece> pieces;
  for (size_t i = 0; i < list->size(); ++i) {
    absl::StatusOr<MemoryPiece> piece = PieceOf((*list)[i], layout, memory_bytes);
    if (!piece.ok()) return Wrong(absl::StrCat("pieces[", i, "]: ", piece.status().message()));
    pieces.push_back(*piece);
  }
  return pieces;
}

}  // namespace

absl::StatusOr<ClaimRequest> ParseClaim(absl::string_view body) {
  MP_ASSIGN_OR_RETURN(const Json json, ParseObject(body));
  ClaimRequest request;
  MP_ASSIGN_OR_RETURN(request.step, CountIn(json, "step", kMostStep));
  request.durable = FlagIn(json, "durable", /*absent=*/true);
  return request;
}

absl::StatusOr<SaveRequest> ParseSaveRequest(absl::string_view body) {
  MP_ASSIGN_OR_RETURN(const Json json, ParseObject(body));
  SaveRequest request;
  MP_ASSIGN_OR_RETURN(request.step, CountIn(json, "step", kMostStep));
  request.alone = FlagIn(json, "alone", /*absent=*/false);
  request.durable = FlagIn(json, "durable", /*absent=*/true);
  if (request.alone && !request.durable) return Wrong("durable: a save of one rank alone is");
  MP_ASSIGN_OR_RETURN(request.memory, MemoryIn(json));
  MP_ASSIGN_OR_RETURN(const Json* tensors, ListIn(json, "tensors"));
  for (size_t i = 0; i < tensors->size(); ++i) {
    absl::StatusOr<v1::TensorInfo> tensor = TensorOf((*tensors)[i]);
    if (!tensor.ok()) return Wrong(absl::StrCat("tensors[", i, "]: ", tensor.status().message()));
    request.tensors.push_back(*std::move(tensor));
  }
  MP_ASSIGN_OR_RETURN(const state::StateLayout layout,
                      state::StateLayout::FromProto(request.tensors));
  MP_ASSIGN_OR_RETURN(request.pieces, PiecesIn(json, layout, request.memory.bytes));
  return request;
}

absl::StatusOr<ReadRequest> ParseReadRequest(absl::string_view body,
                                             const state::StateLayout& layout) {
  MP_ASSIGN_OR_RETURN(const Json json, ParseObject(body));
  ReadRequest request;
  MP_ASSIGN_OR_RETURN(request.memory, MemoryIn(json));
  MP_ASSIGN_OR_RETURN(request.pieces, PiecesIn(json, layout, request.memory.bytes));
  return request;
}

std::string ManifestJson(const v1::CheckpointManifest& manifest) {
  Json tensors = Json::array();
  for (const v1::TensorInfo& tensor : manifest.tensors()) {
    Json shape = Json::array();
    for (const int64_t dimension : tensor.shape()) shape.push_back(dimension);
    tensors.push_back({tensor.name(), tensor.kind(), tensor.dtype(), std::move(shape)});
  }
  const Json json = {{"checkpoint", manifest.checkpoint().name()},
                     {"step", manifest.checkpoint().step()},
                     {"tensors", std::move(tensors)}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace milepost::worker
