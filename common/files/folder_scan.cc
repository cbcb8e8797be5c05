#include "common/files/folder_scan.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/files/ignore_rules.h"
#include "common/regular_file.h"
#include "common/status_macros.h"

namespace milepost {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostRuleBytes = size_t{1} << 20;  // of one file of rules
constexpr int64_t kSeenBeyond = 10;  // times as many entries as may be: to say which are many
constexpr char kGitIgnore[] = ".gitignore";
constexpr char kMilepostIgnore[] = ".milepostignore";
// What git and `milepost run` keep for themselves.
constexpr const char* kNeverSent[] = {".git", ".milepost"};
constexpr char kRemedy[] = "name it in .milepostignore if the job does not need it";

std::string Join(const std::string& folder, absl::string_view name) {
  return folder.empty() ? std::string(name) : absl::StrCat(folder, "/", name);
}

absl::Status Refused(const std::string& path, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat(absl::CHexEscape(path), " cannot be sent: ", why, "; ", kRemedy));
}

std::string SizeText(int64_t bytes) {
  constexpr int64_t kKib = 1024;
  if (bytes < kKib) return absl::StrCat(bytes, "B");
  if (bytes < kKib * kKib) return absl::StrFormat("%.1fKiB", static_cast<double>(bytes) / kKib);
  const double mib = static_cast<double>(bytes) / (kKib * kKib);
  return mib < kKib ? absl::StrFormat("%.1fMiB", mib) : absl::StrFormat("%.1fGiB", mib / kKib);
}

class FolderScan {
 public:
  FolderScan(const fs::path& folder, const ArchiveLimits& limits)
      : folder_(folder), limits_(limits) {}

  absl::StatusOr<std::vector<ScannedEntry>> Run() {
    MP_RETURN_IF_ERROR(ReadRulesAbove());
    MP_RETURN_IF_ERROR(Walk(""));
    if (bytes_ > limits_.bytes || Entries() > limits_.entries) return TooLarge();
    std::sort(found_.begin(), found_.end(),
              [](const auto& a, const auto& b) { return a.path < b.path; });
    return std::move(found_);
  }

 private:
  int64_t Entries() const { return static_cast<int64_t>(found_.size()); }

  // A folder within a git repository is also ruled by what lies above it there.
  absl::Status ReadRulesAbove() {
    std::error_code error;
    std::vector<fs::path> above;
    for (fs::path at = folder_; !fs::exists(at / ".git", error); at = at.parent_path()) {
      if (at == at.parent_path()) return absl::OkStatus();  // in none
      above.push_back(at.parent_path());
    }
    for (auto at = above.rbegin(); at != above.rend(); ++at) {
      const std::string inner = at->lexically_relative(above.back()).string();
      MP_RETURN_IF_ERROR(ReadRules(*at / kGitIgnore, inner == "." ? "" : inner));
    }
    if (!above.empty()) prefix_ = folder_.lexically_relative(above.back()).string();
    return absl::OkStatus();
  }

  absl::Status ReadRules(const fs::path& file, const std::string& inner) {
    const auto text = ReadRegularFile(file.string(), kMostRuleBytes);
    if (absl::IsNotFound(text.status())) return absl::OkStatus();
    MP_RETURN_IF_ERROR(text.status());
    rules_.Add(inner, *text);
    return absl::OkStatus();
  }

  absl::Status Walk(const std::string& inner) {
    const fs::path here = folder_ / inner;
    MP_RETURN_IF_ERROR(ReadRules(here / kGitIgnore, Join(prefix_, inner)));
    MP_RETURN_IF_ERROR(ReadRules(here / kMilepostIgnore, Join(prefix_, inner)));
    std::vector<std::string> names;
    std::error_code error;
    for (fs::directory_iterator entry(here, error), end; !error && entry != end;
         entry.increment(error)) {
      names.push_back(entry->path().filename().string());
      if (static_cast<int64_t>(names.size()) > kSeenBeyond * limits_.entries) break;
    }
    if (error) return absl::ErrnoToStatus(error.value(), here.string());
    for (const std::string& name : names) {
      if (Entries() > kSeenBeyond * limits_.entries) return absl::OkStatus();
      MP_RETURN_IF_ERROR(Take(Join(inner, name), name));
    }
    return absl::OkStatus();
  }

  absl::Status Look(const std::string& full, struct stat* facts) const {
    if (lstat(full.c_str(), facts) == 0) return absl::OkStatus();
    return errno == ENOENT ? absl::AbortedError(absl::StrCat(
                                 absl::CHexEscape(full), " has gone while it was read: try again"))
                           : absl::ErrnoToStatus(errno, full);
  }

  absl::Status Take(const std::string& path, const std::string& name) {
    for (const char* never : kNeverSent) {
      if (name == never) return absl::OkStatus();
    }
    ScannedEntry entry = {.path = path, .facts = {}, .target = ""};
    const std::string full = (folder_ / path).string();
    MP_RETURN_IF_ERROR(Look(full, &entry.facts));
    const bool is_folder = S_ISDIR(entry.facts.st_mode);
    if (rules_.Ignores(Join(prefix_, path), is_folder)) return absl::OkStatus();
    if (const absl::Status good = CheckArchivePath(path); !good.ok()) {
      return Refused(full, good.message());
    }
    MP_RETURN_IF_ERROR(CheckKind(full, &entry));
    if (S_ISREG(entry.facts.st_mode)) bytes_ += entry.facts.st_size;
    found_.push_back(std::move(entry));
    return is_folder ? Walk(path) : absl::OkStatus();
  }

  // Fills in a link's target.
  static absl::Status CheckKind(const std::string& full, ScannedEntry* entry) {
    const mode_t mode = entry->facts.st_mode;
    if (S_ISREG(mode) || S_ISDIR(mode)) return absl::OkStatus();
    if (S_ISSOCK(mode)) return Refused(full, "it is a socket");
    if (S_ISFIFO(mode)) return Refused(full, "it is a FIFO");
    if (!S_ISLNK(mode)) return Refused(full, "it is a device");
    std::error_code error;
    entry->target = fs::read_symlink(full, error).string();
    if (error) return absl::ErrnoToStatus(error.value(), full);
    const absl::Status good = CheckArchiveLink(entry->path, entry->target);
    return good.ok() ? good : Refused(full, absl::StrCat(good.message(), " (", entry->target, ")"));
  }

  absl::Status TooLarge() {
    const bool many = Entries() > kSeenBeyond * limits_.entries;
    return absl::InvalidArgumentError(
        absl::StrCat(folder_.string(), " has ", many ? "more than " : "", SizeText(bytes_), " in ",
                     Entries(), " files and folders; at most ", SizeText(limits_.bytes), " in ",
                     limits_.entries, " are sent along. The largest: ", LargestOf(found_),
                     ". Name what the job does not need in ", (folder_ / kMilepostIgnore).string(),
                     ", and keep data on a shared file system"));
  }

  const fs::path folder_;
  const ArchiveLimits limits_;
  IgnoreRules rules_;
  std::string prefix_;  // of the folder, from where the outermost rules are
  std::vector<ScannedEntry> found_;
  int64_t bytes_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<ScannedEntry>> ScanFolder(const std::string& folder,
                                                     const ArchiveLimits& limits) {
  std::error_code error;
  const fs::path real = fs::canonical(folder, error);
  if (error || !fs::is_directory(real, error)) {
    return absl::InvalidArgumentError(absl::StrCat(folder, " is not there, or is no folder"));
  }
  return FolderScan(real, limits).Run();
}

std::string LargestOf(const std::vector<ScannedEntry>& entries) {
  constexpr size_t kShown = 5;
  struct Sum {
    int64_t bytes = 0;
    int64_t files = 0;
    bool folder = false;
  };
  std::map<std::string, Sum> sums;  // of what is in the folder itself
  for (const ScannedEntry& entry : entries) {
    const size_t slash = entry.path.find('/');
    Sum& sum = sums[entry.path.substr(0, slash)];
    sum.folder = sum.folder || slash != std::string::npos;
    sum.bytes += S_ISREG(entry.facts.st_mode) ? entry.facts.st_size : 0;
    ++sum.files;
  }
  std::vector<std::pair<std::string, Sum>> sorted(sums.begin(), sums.end());
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second.bytes, a.second.files) > std::pair(b.second.bytes, b.second.files);
  });
  sorted.resize(std::min(sorted.size(), kShown));
  return absl::StrJoin(sorted, ", ", [](std::string* text, const auto& one) {
    absl::StrAppend(text, absl::CHexEscape(one.first), one.second.folder ? "/ " : " ",
                    SizeText(one.second.bytes));
    if (one.second.folder) absl::StrAppend(text, " in ", one.second.files);
  });
}

}  // namespace milepost
