#include "client/cli/app.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_split.h"
#include "client/cli/output.h"
#include "client/cli/run_cli.h"
#include "common/exit_codes.h"
#include "common/subprocess.h"
#include "milepost/v1/job.pb.h"

namespace milepost::client {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(MainTest, WrongCommandLinesSayWhatWasMeant) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"jbo list", "unknown command 'jbo'; did you mean 'job'?"},
      {"frobnicate",
       "unknown command 'frobnicate'; expected one of run, plan, bench, doctor, dataset"},
      {"job lits", "unknown command 'lits'; did you mean 'list'?"},
      {"job list --ouptut json", "unknown flag --ouptut; did you mean '--output'?"},
      {"job list -o jsn",
       "expected one of table, wide, json, yaml, name, got 'jsn'; did you mean "
       "'json'?"},
      {"run a.yaml --worker=2", "unknown flag --worker; did you mean '--workers'?"},
      {"run a.yaml --workers 0", "--workers"},
      {"run", "spec is required, or --model and --data, or --job"},
      {"run a.yaml --job 2", "excludes"},
      {"run --job 2 --fresh", "--job excludes --fresh"},
      {"run --model a", "--model requires --data"},
      {"run a.yaml --lora", "--lora requires --model"},
      {"run a.yaml --dora", "--dora requires --model"},
      {"run a.yaml b.yaml", "unexpected argument 'b.yaml'"},
      {"job delete", "jobs is required"},
      {"job wait", "Exactly 1 option from [jobs,--array] is required"},
      {"job wait 7 --array 8", "and 2 were given"},
      {"job cancel 7 --arry 8", "unknown flag --arry; did you mean '--array'?"},
      {"job logs 7 8 --follow", "--follow: follows one job, not several"},
      {"job curves", "jobs is required"},
      {"job curves 7 --points -1", "--points"},
      {"job curves 7 --plott", "did you mean '--plot'?"},
      {"job list --sort lost", "did you mean 'loss'?"},
      {"job", "A subcommand is required"},
      {"job wait 7 --timeout soon", "expected a length of time such as 30s, 5m or 1h"},
      {"generate --checkpoint 1 --job 2 --prompt x", "excludes"},
      {"serve --checkpoint 1 --job 2", "excludes"},
      {"serve --port 65536", "--port"},
      {"serve --host 192.0.2.1 --port 0", "give --api-key-file FILE"},
      {"completion tcsh", "expected one of bash, zsh, fish, got 'tcsh'"},
      {"dataset tokenize --tokenizer bytes --output no/a.npy --validation-output ./no/../no/a.npy "
       "--validation-fraction 0.1 --input in.txt",
       "--output and --validation-output are the same file"},
      {"run a.yaml -o yaml", "expected one of table, json, got 'yaml'"},
  };
  for (const auto& [line, message] : cases) {
    const Outcome outcome = RunCli(line);
    EXPECT_EQ(outcome.exit_code, kExitUsage) << line;
    EXPECT_THAT(outcome.err, HasSubstr(message)) << line;
    EXPECT_EQ(outcome.out, "") << line;
  }
}

TEST(MainTest, HelpAndVersionAreData) {
  for (const char* line : {"", "--help", "job --help", "job list --help", "--version"}) {
    const Outcome outcome = RunCli(line);
    EXPECT_EQ(outcome.exit_code, kExitOk) << line;
    EXPECT_NE(outcome.out, "") << line;
    EXPECT_EQ(outcome.err, "") << line;
  }
  EXPECT_EQ(RunCli("version -o json").out, "{\n  \"version\": \"0.1.0\"\n}\n");
}

TEST(MainTest, AMissingSpecOrCoordinatorHasItsExitCode) {
  EXPECT_EQ(RunCli("run /no/such.yaml").exit_code, kExitUsage);
  EXPECT_EQ(RunCli("plan /no/such.yaml").exit_code, kExitUsage);
  EXPECT_THAT(RunCli("run /no/such.yaml").err, HasSubstr("/no/such.yaml"));
  const auto nowhere = RunCli("job wait 1 --data-dir /no/such");
  EXPECT_EQ(nowhere.exit_code, kExitError);
  EXPECT_THAT(nowhere.err, HasSubstr("there are no jobs in /no/such"));
}

TEST(CompletionTest, KnowsEveryCommandOfTheTree) {
  const CommandInfo root = DescribeCommands();
  const auto find = [](const CommandInfo& in, const std::string& name) {
    return std::find_if(in.commands.begin(), in.commands.end(),
                        [&](const CommandInfo& c) { return c.name == name; });
  };
  ASSERT_NE(find(root, "job"), root.commands.end());
  const auto list = find(*find(root, "job"), "list");
  EXPECT_THAT(list->aliases, ::testing::ElementsAre("ls"));
  EXPECT_EQ(CompletionScript(root, "tcsh").status().code(), absl::StatusCode::kInvalidArgument);
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const auto script = CompletionScript(root, shell);
    ASSERT_TRUE(script.ok());
    for (const CommandInfo& command : root.commands) EXPECT_THAT(*script, HasSubstr(command.name));
    EXPECT_THAT(*script, HasSubstr("job ls"));
  }
}

// What bash itself makes of the script, after the lines of `before`.
std::string Complete(const std::string& words, int index, const std::string& before = "") {
  const std::string path =
      (std::filesystem::path(::testing::TempDir()) / "milepost_completion_XXXXXX").string();
  std::string name = path;
  const int fd = mkstemp(name.data());
  EXPECT_GE(fd, 0);
  close(fd);
  std::ofstream(name) << *CompletionScript(DescribeCommands(), "bash") << before << "\nCOMP_WORDS=("
                      << words << "); COMP_CWORD=" << index
                      << "; _milepost; echo \"${COMPREPLY[*]}\"\n";
  SpawnOptions options;
  options.argv = {"/bin/bash", name};
  options.out = Redirect::Pipe();
  auto bash = Subprocess::Spawn(std::move(options));
  EXPECT_TRUE(bash.ok()) << bash.status();
  const UniqueFd out = bash->TakeOut();
  std::string text(1 << 16, '\0');
  size_t size = 0;
  for (ssize_t got; (got = read(out.get(), &text[size], text.size() - size)) > 0;) size += got;
  text.resize(size);
  std::filesystem::remove(name);
  return text;
}

TEST(CompletionTest, BashCompletesCommandsFlagsAndValues) {
  EXPECT_EQ(Complete("milepost jo", 1), "job\n");
  EXPECT_THAT(Complete("milepost job ''", 2), AllOf(HasSubstr("submit"), HasSubstr("resume")));
  EXPECT_EQ(Complete("milepost job list --outp", 3), "--output\n");
  EXPECT_EQ(Complete("milepost job ls -o ya", 4), "yaml\n");
  EXPECT_EQ(Complete("milepost completion z", 2), "zsh\n");
}

// In place of milepost: says how it was called, and what a coordinator might.
constexpr char kLister[] = R"(
timeout() {
  shift 2
  [[ "$*" == "job list -o name --limit 200 --data-dir d" ]] &&
    printf '%s\n' jobs/12 jobs/7 '$(echo jobs/666)' '`echo jobs/667`' 'jobs/8 jobs/9'
})";

TEST(CompletionTest, BashCompletesNamesAndRunsNoneOfThem) {
  EXPECT_THAT(Complete("milepost job describe --data-dir d ''", 5, kLister),
              ::testing::EndsWith(" jobs/12 jobs/7\n"));
  EXPECT_EQ(Complete("milepost job describe --data-dir d jobs", 5, kLister), "jobs/12 jobs/7\n");
  EXPECT_EQ(Complete("milepost job describe --data-dir d jobs/1", 5, kLister), "jobs/12\n");
  EXPECT_EQ(Complete("milepost job describe jobs", 3, kLister), "\n");
}

TEST(OutputTest, ListsInEveryFormat) {
  v1::Job job;
  job.set_name("jobs/7");
  job.mutable_spec()->set_name("quickstart");
  job.mutable_spec()->mutable_train()->set_steps(100);
  job.mutable_spec()->mutable_resources()->set_ranks(2);
  job.set_state(v1::JOB_STATE_QUEUED);
  job.set_reason(v1::JOB_REASON_WAITING_FOR_SLOTS);
  job.mutable_create_time()->set_seconds(1000);
  const absl::Time now = absl::FromUnixSeconds(1042);
  EXPECT_EQ(RenderJobs({job}, OutputFormat::kTable, now),
            "NAME    SPEC        STATE   REASON             QUEUE    PRIO  RANKS  STEP   LOSS  "
            "RESTARTS  AGE\n"
            "jobs/7  quickstart  QUEUED  WAITING_FOR_SLOTS  default  0     2      0/100  -     "
            "0         42s\n");
  EXPECT_EQ(RenderJobs({job, job}, OutputFormat::kName, now), "jobs/7\njobs/7\n");
  EXPECT_THAT(RenderJobs({job}, OutputFormat::kJson, now), HasSubstr("\"state\": \"QUEUED\""));
  EXPECT_THAT(RenderJobs({job}, OutputFormat::kYaml, now), HasSubstr("- name: jobs/7\n"));
  EXPECT_EQ(RenderJobs({}, OutputFormat::kJson, now), "[]\n");
  EXPECT_THAT(RenderJob(job, OutputFormat::kTable, now),
              HasSubstr("Reason:       WAITING_FOR_SLOTS"));
}

TEST(RenderJobTest, ShowsWhatWasChosenAndWhy) {
  v1::Job job;
  job.set_name("jobs/7");
  v1::Choice* choice = job.add_choices();
  choice->set_field("train.zero.stage");
  choice->set_value("2");
  choice->set_reason("1 does not fit");
  EXPECT_THAT(RenderJob(job, OutputFormat::kTable, absl::UnixEpoch()),
              HasSubstr("Chosen:       train.zero.stage: 2 (1 does not fit)\n"));
}

}  // namespace
}  // namespace milepost::client
