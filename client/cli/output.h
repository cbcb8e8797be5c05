// The output of commands: data goes to stdout in the format that -o chose, everything else to
// stderr.
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

// The same of a list of messages.
std::string RenderMessages(const std::vector<const google::protobuf::Message*>& messages,
                           OutputFormat format);
template <typename Message>
std::string RenderMessages(const std::vector<Message>& messages, OutputFormat format) {
  std::vector<const google::protobuf::Message*> all;
  for (const Message& message : messages) all.push_back(&message);
  return RenderMessages(all, format);
}

// All output of a command goes through these functions, whoever wrote the text. Control characters
// other than line breaks and tabs never reach stderr, or stdout when it is a terminal. A file or a
// pipe gets the bytes unchanged.
//
// Print writes to stdout and flushes. The others write one line to stderr, with "milepost: " before
// an error and "hint: " before a hint.
void Print(absl::string_view text);
// Whether something could not be printed: nobody reads what comes.
bool OutputFailed();
void Note(absl::string_view text);
// Erases the last lines on the terminal at stdout, so that others can be drawn in their place.
void EraseLines(size_t lines);
void Hint(absl::string_view text);
// Prints the failure and returns its exit code.
int Fail(const absl::Status& status);
// Call it at the end of a command whose output matters. If the command succeeded but some output
// could not be written, it returns kExitError and says why.
int FinishOutput(int exit_code);

bool StdoutIsTerminal();

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_OUTPUT_H_
