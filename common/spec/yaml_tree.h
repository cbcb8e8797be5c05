// YAML text as a small tree with line numbers, safe for hostile text. Internal to common/spec.
#ifndef MILEPOST_COMMON_SPEC_YAML_TREE_H_
#define MILEPOST_COMMON_SPEC_YAML_TREE_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace google::protobuf {
class Message;
}

namespace milepost {

struct YamlField;

struct YamlNode {
  enum class Kind { kNull, kScalar, kSequence, kMapping };
  Kind kind = Kind::kNull;
  int line = 0;  // from 1
  std::string scalar;
  bool quoted = false;            // '8' or "8" is text, never a number
  std::vector<YamlNode> items;    // of a sequence
  std::vector<YamlField> fields;  // of a mapping, in the written order, with duplicates
};

struct YamlField {
  YamlNode key;
  YamlNode value;
};

// Parses one document; empty text gives a null node. INVALID_ARGUMENT "filename:line: ...":
// anchors, aliases, tags, further documents, more than 32 levels or more than 10,000 values.
// Thread-safe.
absl::StatusOr<YamlNode> ParseYamlTree(absl::string_view text, absl::string_view filename);

// Merges `over` into `base`: mappings field by field, other values as a whole.
void LayOver(YamlNode over, YamlNode* base);

// The part of ParseYamlMessage that works on a text's tree.
absl::Status FillMessage(const YamlNode& root, absl::string_view filename,
                         google::protobuf::Message* message, std::map<std::string, int>* lines);

}  // namespace milepost

#endif  // MILEPOST_COMMON_SPEC_YAML_TREE_H_
