// Reads a job spec: YAML with exactly the field names of proto/milepost/v1/job_spec.proto.
//
//   MP_ASSIGN_OR_RETURN(v1::JobSpec spec, LoadJobSpec("examples/quickstart.yaml"));
//   // every default filled in, every rule checked, data paths absolute
//
// Every failure is INVALID_ARGUMENT with one line for each problem, at most 10. A file that cannot
// be read gives NOT_FOUND, PERMISSION_DENIED and so on.
//
//   quickstart.yaml:7: model.gpt2.layer: unknown field; did you mean 'layers'?
//
// Untrusted text is safe. The limits are 1 MiB, 32 levels and 10,000 values. Anchors, aliases, tags
// and several documents are refused. All functions are thread-safe. Those that take a path block on
// the file.
#ifndef MILEPOST_COMMON_SPEC_PARSE_H_
#define MILEPOST_COMMON_SPEC_PARSE_H_

#include <functional>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace google::protobuf {
class Message;
}
namespace milepost::v1 {
class JobSpec;
}

namespace milepost {

inline constexpr size_t kMaxSpecBytes = 1 << 20;
inline constexpr size_t kMaxTemplateBytes = 64 << 10;

// The line of each field, counted from 1: "train.batch.micro" -> line.
using FieldLines = std::map<std::string, int>;

// Parses any message whose lists hold messages, texts or int64, and whose maps hold texts by name.
// `filename` is used only in messages. Absent fields stay absent: no default is filled in, and no
// rule is checked. `lines`, when given, is filled in.
absl::Status ParseYamlMessage(absl::string_view text, absl::string_view filename,
                              google::protobuf::Message* message, FieldLines* lines = nullptr);

// Does the same for a job spec.
absl::StatusOr<v1::JobSpec> ParseJobSpecYaml(absl::string_view text, absl::string_view filename,
                                             FieldLines* lines = nullptr);

// Reads and parses a file. An empty name becomes the file's name without its extension. Relative
// data paths become absolute, based on the spec's folder. "-" reads standard input to its end,
// which may block, and uses the current folder.
absl::StatusOr<v1::JobSpec> ReadJobSpecFile(const std::string& path, FieldLines* lines = nullptr);

// Fills in what one field of a spec stands for, such as model.hugging_face, of which this library
// knows nothing. The field's violation has the error's message.
struct SpecFiller {
  std::string field;
  std::function<absl::Status(v1::JobSpec*)> fill;
};

// Calls ReadJobSpecFile, the fillers, and NormalizeJobSpec, and makes the checks of validate.h.
// Violations have file and line.
absl::StatusOr<v1::JobSpec> LoadJobSpec(const std::string& path,
                                        absl::Span<const SpecFiller> fillers = {});

// A part of a job spec. A spec's file is laid over it: mappings field by field, lists and other
// values as a whole (docs/use/jobs.md, "Templates").
struct SpecTemplate {
  std::string name;
  std::string yaml;
};

// OK when every field is a field of a job spec, with a value of its type. Paths must be absolute,
// because a template lies in no folder.
absl::Status CheckSpecTemplate(absl::string_view yaml, absl::string_view filename);
// Reads the file and checks it.
absl::StatusOr<std::string> ReadSpecTemplateFile(const std::string& path);

// ReadJobSpecFile and LoadJobSpec for a file laid over a template. With an empty path they use only
// the template. Messages say "template NAME:LINE" or "FILE:LINE", depending on where the value came
// from.
absl::StatusOr<v1::JobSpec> ReadJobSpecOver(const SpecTemplate& base, const std::string& path);
absl::StatusOr<v1::JobSpec> LoadJobSpecOver(const SpecTemplate& base, const std::string& path,
                                            absl::Span<const SpecFiller> fillers = {});

}  // namespace milepost

#endif  // MILEPOST_COMMON_SPEC_PARSE_H_
