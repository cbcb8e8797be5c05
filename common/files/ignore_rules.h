// Which files of a folder are left out: the rules of gitignore(5), in .gitignore and in
// .milepostignore.
//
//   IgnoreRules rules;
//   rules.Add("", "*.pt\n!best.pt\n");        // of the folder itself
//   rules.Add("data", "/raw/\n");             // of a folder in it; outer ones come first
//   rules.Ignores("data/raw", /*is_folder=*/true);    // true: and so is all that is in it
//
// Of several patterns that fit, the last one counts. A folder that is ignored is not walked, so
// nothing in it can be named again with "!". Paths have no "/" at either end. Pure; reading is
// thread-safe. Patterns are the user's own: their number is bounded by who reads the files.
#ifndef MILEPOST_COMMON_FILES_IGNORE_RULES_H_
#define MILEPOST_COMMON_FILES_IGNORE_RULES_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace milepost {

class IgnoreRules {
 public:
  // The lines of a file in `folder`; "" is the outermost one. They come after all before.
  void Add(absl::string_view folder, absl::string_view text);
  // `path` is relative to the outermost folder.
  bool Ignores(absl::string_view path, bool is_folder) const;

 private:
  struct Rule {
    std::string folder;              // where it holds
    std::vector<std::string> parts;  // between slashes; one that is not anchored has one
    bool anchored = false;           // to the folder; else it is about names anywhere in it
    bool folders_only = false;
    bool keeps = false;  // "!"
  };
  static bool Fits(const Rule& rule, absl::string_view path, bool is_folder);

  std::vector<Rule> rules_;
};

// Whether a name, without slashes, fits a pattern of '*', '?', '[a-z]' and '\'. Pure.
bool FitsGlob(absl::string_view pattern, absl::string_view name);

}  // namespace milepost

#endif  // MILEPOST_COMMON_FILES_IGNORE_RULES_H_
