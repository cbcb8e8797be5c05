#include "common/spec/task_heads.h"

#include <cstdint>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/spec/model_sizes.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost {
namespace {

constexpr int kMaxHeads = 7;  // graph::kMaxLosses, less the family's own
constexpr size_t kLongestHeadName = 63;
constexpr int64_t kMaxClasses = int64_t{1} << 24;
constexpr size_t kLongestPath = 4096;

class HeadChecker {
 public:
  explicit HeadChecker(const v1::JobSpec& spec)
      : spec_(spec), images_(SizesOf(spec.model()).images) {}

  std::vector<FieldViolation> Run() && {
    const v1::ModelSpec& model = spec_.model();
    if (model.heads_size() > kMaxHeads) {
      Add("model.heads", absl::StrCat(model.heads_size(), " heads; at most ", kMaxHeads));
      return std::move(violations_);
    }
    CheckOwnWeight();
    for (int i = 0; i < model.heads_size(); ++i) CheckHead(i);
    if (model.heads_size() > 0 && spec_.data().mixture_size() > 0) {
      Add("model.heads", "the files of data.mixture have no labels: give data.train one file");
      return std::move(violations_);
    }
    for (int i = 0; i < spec_.data().labels_size(); ++i) CheckLabels(i);
    for (const std::string& head : heads_) {
      if (labelled_.contains(head)) continue;
      Add("data.labels", absl::StrCat("required: an entry with head: ", head,
                                      ", the labels that model.heads learns"));
    }
    for (int i = 0; i < spec_.data().validation_sets_size(); ++i) CheckSet(i);
    return std::move(violations_);
  }

 private:
  void Add(std::string field, std::string message) {
    violations_.push_back({std::move(field), std::move(message)});
  }

  void CheckOwnWeight() {
    const v1::ModelSpec& model = spec_.model();
    if (!model.has_head_weight()) return;
    if (model.heads_size() == 0) {
      Add("model.head_weight",
          "there are no model.heads to weigh the model's own head against: "
          "remove it, or give model.heads");
    } else if (!(model.head_weight() >= 0 && model.head_weight() <= 1e9)) {
      Add("model.head_weight",
          absl::StrCat("expected a number in [0, 1e+09], got ", model.head_weight()));
    }
  }

  void CheckHead(int index) {
    const v1::TaskHeadSpec& head = spec_.model().heads(index);
    const std::string field = absl::StrCat("model.heads[", index, "]");
    const std::string& name = head.name();
    bool valid = !name.empty() && name.size() <= kLongestHeadName;
    for (const char c : name) valid = valid && (absl::ascii_isalnum(c) || c == '_');
    if (!valid) {
      Add(field + ".name",
          name.empty()
              ? absl::StrCat("required: 1 to ", kLongestHeadName, " letters, digits and '_'")
          : name.size() > kLongestHeadName
              ? absl::StrCat("expected 1 to ", kLongestHeadName, " letters, digits and '_', got ",
                             name.size(), " characters")
              : absl::StrCat("expected letters, digits and '_' only, got '", name, "'"));
      refused_.insert(name);
    } else if (name == "lm" || name == "mlm" || name == "class") {
      Add(field + ".name", absl::StrCat("'", name,
                                        "' is a model family's own head: choose "
                                        "another name"));
    } else if (!lower_names_.insert(absl::AsciiStrToLower(name)).second) {
      // Shards name their members in any case.
      Add(field + ".name", absl::StrCat("two heads are called '", name, "', whatever the case"));
    } else {
      heads_.insert(name);
    }
    if (head.classes() == 0) {
      Add(field + ".classes", absl::StrCat("required: a whole number from 2 to ", kMaxClasses));
    } else if (head.classes() < 2 || head.classes() > kMaxClasses) {
      Add(field + ".classes",
          absl::StrCat("expected 2 to ", kMaxClasses, ", got ", head.classes()));
    }
    if (!(head.weight() > 0 && head.weight() <= 1e9)) {
      Add(field + ".weight",
          absl::StrCat("expected a number in (0, 1e+09], got ", head.weight(),
                       head.weight() == 0 ? ": remove the head if it is not to be trained" : ""));
    }
  }

  void CheckLabels(int index) {
    const v1::LabelSource& labels = spec_.data().labels(index);
    const std::string field = absl::StrCat("data.labels[", index, "]");
    CheckLabelledHead(field, labels.head(), labelled_);
    CheckPath(field + ".train", "data.train", spec_.data().train(), labels.train());
    CheckPath(field + ".validation", "data.validation", spec_.data().validation(),
              labels.validation());
  }

  void CheckLabelledHead(const std::string& field, const std::string& head,
                         std::set<std::string>& labelled) {
    if (refused_.contains(head)) {
      // Said where the head is.
    } else if (!heads_.contains(head)) {
      Add(field + ".head", absl::StrCat("'", head, "' is the name of no entry of model.heads"));
    } else if (!labelled.insert(head).second) {
      Add(field + ".head", absl::StrCat("two entries are for '", head, "'"));
    }
  }

  void CheckSet(int index) {
    const v1::ValidationSetSpec& set = spec_.data().validation_sets(index);
    const std::string of = absl::StrCat("data.validation_sets[", index, "]");
    std::set<std::string> labelled;
    for (int i = 0; i < set.labels_size(); ++i) {
      const std::string field = absl::StrCat(of, ".labels[", i, "]");
      CheckLabelledHead(field, set.labels(i).head(), labelled);
      CheckPath(field + ".path", of, set.path(), set.labels(i).path());
    }
    for (const std::string& head : heads_) {
      if (labelled.contains(head)) continue;
      Add(of + ".labels", absl::StrCat("required: an entry with head: ", head,
                                       ", the labels that model.heads learns"));
    }
  }

  void CheckPath(const std::string& field, const std::string& of, const std::string& data,
                 const std::string& path) {
    if (path.empty()) {
      // Sets of encoded images may hold the labels themselves.
      const bool inside = images_ && !absl::EndsWith(data, ".npy");
      if (!data.empty() && !inside) Add(field, absl::StrCat("required: the labels of ", of));
      return;
    }
    if (data.empty()) {
      Add(field, absl::StrCat("there is no ", of, ": give it, or remove this field"));
    } else if (path.size() > kLongestPath) {
      Add(field, absl::StrCat("a path of ", path.size(), " characters; at most ", kLongestPath));
    } else if (HasControl(path)) {
      Add(field, "the path holds a control character");
    } else if (path[0] != '/') {
      Add(field,
          absl::StrCat("expected an absolute path, got '", path,
                       "' (a spec file's relative paths are made absolute when it is read)"));
    } else if (!absl::EndsWith(path, ".npy")) {
      Add(field, absl::StrCat("expected a .npy array of integers, got '", path, "'"));
    }
  }

  static bool HasControl(const std::string& path) {
    for (const char c : path) {
      if (static_cast<unsigned char>(c) < ' ') return true;
    }
    return false;
  }

  const v1::JobSpec& spec_;
  const bool images_;
  std::set<std::string> heads_;
  std::set<std::string> lower_names_;
  std::set<std::string> refused_;  // names
  std::set<std::string> labelled_;
  std::vector<FieldViolation> violations_;
};

}  // namespace

std::vector<FieldViolation> CheckTaskHeads(const v1::JobSpec& normalized) {
  return HeadChecker(normalized).Run();
}

}  // namespace milepost
