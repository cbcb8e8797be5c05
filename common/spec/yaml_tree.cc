#include "common/spec/yaml_tree.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <sstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/spec/parse.h"
#include "common/status_macros.h"
#include "common/utf8.h"

namespace milepost {
namespace {

constexpr size_t kMaxDepth = 32;
constexpr int kMaxNodes = 10'000;

// Builds the tree from the parser's events. After the first problem it ignores every further event,
// so that what it holds stays bounded.
class TreeBuilder : public YAML::EventHandler {
 public:
  const std::string& problem() const { return problem_; }
  int problem_line() const { return problem_line_; }
  YamlNode TakeRoot() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    if (!Accept(mark, "", anchor)) return;
    // yaml-cpp tells where the next token is. A value that is missing is missing behind its key.
    const bool is_value = !open_.empty() && open_.back().kind == YamlNode::Kind::kMapping &&
                          !open_.back().items.empty();
    Add({YamlNode::Kind::kNull, is_value ? open_.back().items.back().line : mark.line + 1});
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    Fail(mark, "aliases (*name) are not supported: write the value out");
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    if (!Accept(mark, tag, anchor)) return;
    YamlNode node{YamlNode::Kind::kScalar, mark.line + 1, value, tag == "!"};
    if (!node.quoted && (value == "~" || value == "null")) node.kind = YamlNode::Kind::kNull;
    Add(std::move(node));
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    Open(mark, tag, anchor, YamlNode::Kind::kSequence);
  }
  void OnSequenceEnd() override { Close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    Open(mark, tag, anchor, YamlNode::Kind::kMapping);
  }
  void OnMapEnd() override { Close(); }

 private:
  void Fail(const YAML::Mark& mark, std::string problem) {
    if (!problem_.empty()) return;
    problem_ = std::move(problem);
    problem_line_ = mark.line + 1;
  }

  bool Accept(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    if (anchor != 0) Fail(mark, "anchors (&name) are not supported: write the value out");
    if (!tag.empty() && tag != "?" && tag != "!") {
      Fail(mark, absl::StrCat("the tag ", tag, " is not supported: remove it"));
    }
    if (open_.size() >= kMaxDepth) {
      Fail(mark, absl::StrCat("nested deeper than ", kMaxDepth, " levels"));
    }
    if (++nodes_ > kMaxNodes) Fail(mark, absl::StrCat("more than ", kMaxNodes, " values"));
    return problem_.empty();
  }

  void Open(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
            YamlNode::Kind kind) {
    if (Accept(mark, tag, anchor)) open_.push_back({kind, mark.line + 1});
  }

  void Close() {
    if (!problem_.empty()) return;
    YamlNode node = std::move(open_.back());
    open_.pop_back();
    // A key still waiting for its value.
    if (!node.items.empty() && node.kind == YamlNode::Kind::kMapping) node.items.clear();
    Add(std::move(node));
  }

  // Keys and values of a mapping arrive in turn; a key waits in `items` for its value.
  void Add(YamlNode node) {
    if (open_.empty()) {
      root_ = std::move(node);
      return;
    }
    YamlNode& parent = open_.back();
    if (parent.kind == YamlNode::Kind::kSequence || parent.items.empty()) {
      parent.items.push_back(std::move(node));
      return;
    }
    parent.fields.push_back({std::move(parent.items.back()), std::move(node)});
    parent.items.clear();
  }

  YamlNode root_;
  std::vector<YamlNode> open_;
  int nodes_ = 0;
  std::string problem_;
  int problem_line_ = 0;
};

absl::Status At(absl::string_view filename, int line, absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat(filename, ":", line, ": ", problem));
}

// YAML forbids tabs in indentation, and yaml-cpp then speaks of something else.
std::string TabHint(absl::string_view text, int line) {
  const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  for (int i = std::max(0, line - 1); i <= line && i < static_cast<int>(lines.size()); ++i) {
    const size_t first = lines[i].find_first_not_of(" \t");
    if (lines[i].substr(0, first).find('\t') == absl::string_view::npos) continue;
    return absl::StrCat(" (line ", i + 1, " is indented with a tab: use spaces)");
  }
  return "";
}

// yaml-cpp reports its errors by throwing; nothing of it leaves this function.
absl::Status Drive(absl::string_view text, absl::string_view filename, TreeBuilder* builder) {
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    if (!parser.HandleNextDocument(*builder)) return absl::OkStatus();
    TreeBuilder rest;
    if (parser.HandleNextDocument(rest)) {
      return At(filename, 1, "several YAML documents in one file: keep one");
    }
  } catch (const YAML::Exception& error) {
    return At(filename, error.mark.line + 1,
              absl::StrCat("not valid YAML: ", error.msg, TabHint(text, error.mark.line)));
  }
  return absl::OkStatus();
}

}  // namespace

namespace {

// A spec travels in messages whose text is UTF-8, to clients that refuse any other.
absl::Status CheckUtf8(absl::string_view text, absl::string_view filename) {
  int line = 1;
  while (!text.empty()) {
    const size_t bytes = Utf8Character(text);
    if (bytes == 0) return At(filename, line, "not UTF-8 text");
    line += text[0] == '\n' ? 1 : 0;
    text.remove_prefix(bytes);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<YamlNode> ParseYamlTree(absl::string_view text, absl::string_view filename) {
  if (text.size() > kMaxSpecBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(filename, ": ", text.size(), " bytes; a spec has at most ", kMaxSpecBytes));
  }
  if (text.find('\0') != absl::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat(filename, ": not text: it holds a zero byte"));
  }
  MP_RETURN_IF_ERROR(CheckUtf8(text, filename));
  TreeBuilder builder;
  const absl::Status parsed = Drive(text, filename, &builder);
  if (!builder.problem().empty()) return At(filename, builder.problem_line(), builder.problem());
  MP_RETURN_IF_ERROR(parsed);
  return builder.TakeRoot();
}

void LayOver(YamlNode over, YamlNode* base) {
  using Kind = YamlNode::Kind;
  if (over.kind != Kind::kMapping || base->kind != Kind::kMapping) {
    *base = std::move(over);
    return;
  }
  for (YamlField& field : over.fields) {
    const auto same =
        std::find_if(base->fields.begin(), base->fields.end(),
                     [&](const YamlField& other) { return other.key.scalar == field.key.scalar; });
    if (same == base->fields.end()) {
      base->fields.push_back(std::move(field));
    } else {
      LayOver(std::move(field.value), &same->value);
    }
  }
}

}  // namespace milepost
