#include "engine/state/safetensors_index.h"

#include <cerrno>
#include <exception>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/regular_file.h"
#include "common/status_macros.h"
#include "engine/state/safetensors_header.h"

namespace milepost::state {
namespace {

absl::Status MalformedIndex(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("malformed safetensors index: ", what));
}

// A file of the same folder, and nothing else.
bool PlainFileName(absl::string_view name) {
  return !name.empty() && name.size() <= 255 && name[0] != '.' &&
         name.find('/') == absl::string_view::npos && name.find('\0') == absl::string_view::npos;
}

// {"metadata": anything, "weight_map": {tensor: file}}. Takes the pieces as they come; what is
// nested in other keys is walked over, and no deeper than this.
class IndexSax : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit IndexSax(std::map<std::string, std::string>* weight_map) : weight_map_(weight_map) {}
  const std::string& problem() const { return problem_; }
  bool found() const { return found_; }

  bool null() override { return Scalar(); }
  bool boolean(bool) override { return Scalar(); }
  bool number_integer(number_integer_t) override { return Scalar(); }
  bool number_unsigned(number_unsigned_t) override { return Scalar(); }
  bool number_float(number_float_t, const string_t&) override { return Scalar(); }
  bool binary(binary_t&) override { return Scalar(); }
  bool string(string_t& value) override {
    if (!InMap()) return true;
    if (!PlainFileName(value)) {
      return Problem(absl::StrCat("the file ", ShownName(value), " of tensor ", ShownName(key_),
                                  " is not a plain file name"));
    }
    if (!weight_map_->emplace(key_, value).second) {
      return Problem(absl::StrCat("tensor ", ShownName(key_), " is there twice"));
    }
    return true;
  }
  bool start_object(size_t) override {
    if (depth_ == 1 && key_ == "weight_map") {
      if (found_) return Problem("weight_map is there twice");
      found_ = in_map_ = true;
    }
    return Open();
  }
  bool start_array(size_t) override { return Open(); }
  bool key(string_t& key) override {
    key_ = std::move(key);
    return true;
  }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return Problem(absl::StrCat("not valid JSON at byte ", position));
  }

 private:
  static constexpr int kMaxDepth = 16;

  bool InMap() const { return in_map_ && depth_ == 2; }
  bool Problem(std::string problem) {
    if (problem_.empty()) problem_ = std::move(problem);
    return false;
  }
  bool Scalar() {
    return !InMap() || Problem(absl::StrCat("tensor ", ShownName(key_), ": no file name"));
  }
  bool Open() {
    if (in_map_ && depth_ >= 2) return Problem("weight_map is not a map of names");
    return ++depth_ <= kMaxDepth || Problem("nested too deeply");
  }
  bool Close() {
    if (--depth_ == 1) in_map_ = false;
    return true;
  }

  std::map<std::string, std::string>* const weight_map_;
  std::string problem_;
  std::string key_;
  int depth_ = 0;
  bool in_map_ = false;
  bool found_ = false;
};

}  // namespace

absl::StatusOr<std::map<std::string, std::string>> ParseSafetensorsIndex(absl::string_view json) {
  std::map<std::string, std::string> weight_map;
  if (json.find('\0') != absl::string_view::npos) return MalformedIndex("a zero byte");
  IndexSax sax(&weight_map);
  try {
    if (!nlohmann::json::sax_parse(json.begin(), json.end(), &sax)) {
      return MalformedIndex(sax.problem());
    }
  } catch (const std::exception& error) {
    return MalformedIndex(error.what());
  }
  if (!sax.found()) return MalformedIndex("no weight_map");
  return weight_map;
}

absl::StatusOr<std::map<std::string, std::string>> ReadSafetensorsIndex(const std::string& path) {
  MP_ASSIGN_OR_RETURN(const std::string text, ReadRegularFile(path, kMaxSafetensorsIndexBytes));
  auto weight_map = ParseSafetensorsIndex(text);
  if (!weight_map.ok()) return Annotate(weight_map.status(), path);
  return weight_map;
}

std::string FormatSafetensorsIndex(const std::map<std::string, std::string>& weight_map,
                                   int64_t total_bytes) {
  try {
    nlohmann::json index;
    index["metadata"]["total_size"] = total_bytes;
    index["weight_map"] = weight_map;
    return index.dump(2) + "\n";
  } catch (const std::exception& error) {
    MP_CHECK(false) << error.what();
    return "";
  }
}

}  // namespace milepost::state
