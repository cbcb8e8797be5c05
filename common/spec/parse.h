// Reads a job spec: YAML with exactly the field names of proto/milepost/v1/job_spec.proto.
//
//   MP_ASSIGN_OR_RETURN(v1::JobSpec spec, LoadJobSpec("examples/quickstart.yaml"));
//   // every default filled in, every rule checked, data paths absolute
//
// Every failure is INVALID_ARGUMENT (a file that cannot be read: NOT_FOUND, PERMISSION_DENIED, ...)
// with one line per problem, at most 10:
//
//   quickstart.yaml:7: model.gpt2.layer: unknown field; did you mean 'layers'?
//
// Untrusted text is safe: at most 1 MiB, 32 levels and 10,000 values; anchors, aliases, tags and
// several documents are refused. All functions are thread-safe; the ones that take a path block on
// the file.
#ifndef MILEPOST_COMMON_SPEC_PARSE_H_
#define MILEPOST_COMMON_SPEC_PARSE_H_

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace google::protobuf {
class Message;
}
namespace milepost::v1 {
class JobSpec;
}

namespace milepost {

inline constexpr size_t kMaxSpecBytes = 1 << 20;
inline constexpr size_t kMaxTemplateBytes = 64 << 10;

// Where each field was given: "train.batch.micro" -> line, counted from 1.
using FieldLines = std::map<std::string, int>;

// Any message without repeated or map fields. `filename` is only for messages. Absent fields stay
// absent; no default is filled in and no rule checked. `lines`, when given, is filled in.
absl::Status ParseYamlMessage(absl::string_view text, absl::string_view filename,
                              google::protobuf::Message* message, FieldLines* lines = nullptr);

// The same for a job spec.
absl::StatusOr<v1::JobSpec> ParseJobSpecYaml(absl::string_view text, absl::string_view filename,
                                             FieldLines* lines = nullptr);

// Reads and parses a file; an empty name becomes the file's name without its extension, and
// relative data paths become absolute, relative to the spec's folder. "-": standard input to its
// end, in the current folder; blocks for it.
absl::StatusOr<v1::JobSpec> ReadJobSpecFile(const std::string& path, FieldLines* lines = nullptr);

// ReadJobSpecFile, NormalizeJobSpec and the checks of validate.h; violations come with file and
// line.
absl::StatusOr<v1::JobSpec> LoadJobSpec(const std::string& path);

// A part of a job spec, that a spec's file is laid over: mappings field by field, lists and other
// values as a whole (docs/use/jobs.md, "Templates").
struct SpecTemplate {
  std::string name;
  std::string yaml;
};

// OK when every field is one of a job spec, with a value of its type, and paths are absolute: a
// template is in no folder.
absl::Status CheckSpecTemplate(absl::string_view yaml, absl::string_view filename);
// The text of a file, checked.
absl::StatusOr<std::string> ReadSpecTemplateFile(const std::string& path);

// ReadJobSpecFile and LoadJobSpec of a file over a template; with an empty path of the template
// alone. Messages say "template NAME:LINE" or "FILE:LINE", whichever the value is from.
absl::StatusOr<v1::JobSpec> ReadJobSpecOver(const SpecTemplate& base, const std::string& path);
absl::StatusOr<v1::JobSpec> LoadJobSpecOver(const SpecTemplate& base, const std::string& path);

}  // namespace milepost

#endif  // MILEPOST_COMMON_SPEC_PARSE_H_
