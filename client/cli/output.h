// What commands print: data on stdout in the format that -o chose, everything else on stderr.
#ifndef MILEPOST_CLIENT_CLI_OUTPUT_H_
#define MILEPOST_CLIENT_CLI_OUTPUT_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace google::protobuf {
class Message;
}
namespace milepost::v1 {
class Checkpoint;
class Choice;
class Job;
class Queue;
class Template;
class Worker;
}  // namespace milepost::v1

namespace milepost::client {

enum class OutputFormat { kTable, kWide, kJson, kYaml, kName };

// The text of a list: a table, a JSON array, a YAML list, or one resource name per line. Pure.
std::string RenderJobs(const std::vector<v1::Job>& jobs, OutputFormat format, absl::Time now);
std::string RenderCheckpoints(const std::vector<v1::Checkpoint>& checkpoints, OutputFormat format,
                              absl::Time now);
std::string RenderWorkers(const std::vector<v1::Worker>& workers, OutputFormat format,
                          absl::Time now);
std::string RenderQueues(const std::vector<v1::Queue>& queues, OutputFormat format);
std::string RenderTemplates(const std::vector<v1::Template>& templates, OutputFormat format,
                            absl::Time now);

// The text of one resource: for people (table, wide), JSON, YAML, or its name. Pure.
std::string RenderJob(const v1::Job& job, OutputFormat format, absl::Time now);
std::string RenderWorker(const v1::Worker& worker, OutputFormat format, absl::Time now);
std::string RenderQueue(const v1::Queue& queue, OutputFormat format);

// "train.zero.stage: 2 (1 does not fit)"
std::string ChoiceText(const v1::Choice& choice);

// A message as JSON (indented) or YAML, ending in a newline.
std::string RenderMessage(const google::protobuf::Message& message, OutputFormat format);

// All that a command writes goes through these, whoever the text is from: control characters other
// than line breaks and tabs never reach stderr, nor stdout where that is a terminal (a file or a
// pipe gets the bytes as they are).
// To stdout, flushed; stderr: one line each, "milepost: " before an error, "hint: " before a hint.
void Print(absl::string_view text);
void Note(absl::string_view text);
// Takes the last lines off the terminal that stdout is, so that others can be drawn in their place.
void EraseLines(size_t lines);
void Hint(absl::string_view text);
// Prints the failure and gives the exit code that stands for it.
int Fail(const absl::Status& status);
// At the end of a command whose output somebody goes by: kExitError, and why, where some of it
// could not be written and all else went well.
int FinishOutput(int exit_code);

bool StdoutIsTerminal();

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_OUTPUT_H_
