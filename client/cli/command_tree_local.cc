// Commands that work on this machine: run, plan, bench, doctor, dataset, generate, serve, web,
// version, completion.
#include <CLI/CLI.hpp>
#include <string>

#include "client/cli/command_tree.h"
#include "client/cli/commands.h"
#include "client/cli/completion.h"
#include "client/cli/output.h"
#include "common/exit_codes.h"
#include "common/flags/number_range.h"
#include "engine/plan/planner/planner.h"

namespace milepost::client {

void CommandTree::AddRun() {
  CLI::App* run = Command(&app_, "run", "Train a spec on this machine, all in one: no setup",
                          [this] { return RunCommand(global_, run_); });
  CLI::Option* spec =
      File(run->add_option("spec", run_.spec, "the job spec, a YAML file; -: standard input"));
  CLI::Option* job = Many(run, "--job", &run_.jobs,
                          "go on with this job of the data directory instead: jobs/7 or 7")
                         ->excludes(spec);
  AddFineTuning(run, spec, job);
  Many(run, "--set", &run_.set, "a field instead of the file's: train.optimizer.lr=1e-4")
      ->excludes(job);
  AddOutput(run, {"table", "json"});
  AddDataDir(run);
  run->add_option("--workers", run_.workers, "worker processes; the ranks are divided among them")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  run->add_option("--hang-seconds", run_.hang_seconds,
                  "a rank whose micro-step, or wait for data, takes longer has failed; 0: never")
      ->check(NumberRange(0, kMostFlagSeconds))
      ->capture_default_str();
  run->add_flag("--fresh", run_.fresh,
                "a new job from new parameters, where there is one of this spec; that one's "
                "checkpoints are deleted, and can be restored for some days")
      ->excludes(job);
}

void CommandTree::AddFineTuning(CLI::App* run, CLI::Option* spec, CLI::Option* job) {
  FineTuning& tuning = run_.tuning;
  CLI::Option* model =
      File(run->add_option("--model", tuning.model,
                           "fine-tune the model of this Hugging Face folder: instead of a spec"))
          ->excludes(spec)
          ->excludes(job);
  CLI::Option* data = File(run->add_option(
      "--data", tuning.data,
      "with --model: chats, prompts, pairs or texts, as `dataset tokenize` takes them"));
  data->needs(model);
  model->needs(data);
  run->add_option("--out", tuning.folder,
                  "with --model: the folder to make, of token files and a spec (default: named "
                  "after both)")
      ->needs(model);
  run->add_flag("--lora", tuning.lora, "with --model: train adapters alone")->needs(model);
  run->add_flag("--dora", tuning.dora, "the same, with a magnitude for each output")->needs(model);
  run->add_option("--sequence-length", tuning.sequence_length,
                  "with --model: tokens of a sample (default: 1024, or the model's context)")
      ->needs(model)
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 20));
}

void CommandTree::AddPlan() {
  CLI::App* plan = Command(&app_, "plan", "Say what a spec needs: memory, FLOPs, bytes on the wire",
                           [this] { return PlanCommand(global_, plan_); });
  Spec(plan, &plan_.spec);
  Many(plan, "--set", &plan_.set, "a field instead of the file's: train.optimizer.lr=1e-4");
  AddOutput(plan, {"table", "wide", "json", "yaml"});
  plan->add_option("--ranks", plan_.ranks, "plan for this many ranks instead of the spec's")
      ->check(CLI::Range(1, 16384));
  File(plan->add_option("--device", plan_.device,
                        "expect its times and memory: a100, b200, cpu, h100, h200, rtx4090, or a "
                        "file that `milepost bench device` made"));
  plan->add_option("--hosts", plan_.hosts, "how many hosts the ranks share out evenly")
      ->check(CLI::Range(1, 16384));
  plan->add_option("--network", plan_.network,
                   "Gb/s of each host to others, all adapters together: 100 Ethernet, 400 or 3200 "
                   "InfiniBand (default: the device's)")
      ->check(CLI::PositiveNumber);
  plan->add_flag("--search", plan_.search,
                 "find the fastest mesh, stage, group, recomputation, micro-batch and offloading "
                 "that fit, for the spec's global batch");
  File(plan->add_option("--draw", plan_.draw,
                        "draw the schedule of a pipeline's stages as an SVG file"));
}

void CommandTree::AddBench() {
  CLI::App* group = Group("bench", "Measure what a machine can do");
  CLI::App* device = Command(group, "device", "Measure this machine's cores for `milepost plan`",
                             [this] { return BenchDeviceCommand(bench_); });
  device->add_option("--out", bench_.output, "the JSON file to make (default: stdout)");
  device->add_option("--device", bench_.device, "cpu, or cuda: the first GPU")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  device->add_option("--disk", bench_.disk,
                     "also measure the disk of this folder (train.offload.path)");
  device->add_option("--name", bench_.name, "what plans call it")->capture_default_str();
  device->add_option("--threads", bench_.threads, "how many to measure with; 0: all cores")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
}

void CommandTree::AddDoctor() {
  CLI::App* doctor = Command(&app_, "doctor", "Check this host for training and say what to change",
                             [this] { return DoctorCommand(global_, doctor_); });
  AddOutput(doctor, {"table", "json"});
  doctor
      ->add_option("--coordinator", global_.coordinator,
                   "HOST:PORT: does it answer, and over which interface")
      ->envname("MILEPOST_COORDINATOR");
  doctor->add_option_function<std::string>(
      "--data-dir",
      [this](const std::string& folder) {
        global_.data_dir = folder;
        doctor_.data_dir_given = true;
      },
      "measure the disk of this folder (default: where `milepost run` keeps everything)");
  File(doctor->add_option("--dataset", doctor_.data_set,
                          "measure how fast this file or folder is read"));
}

void CommandTree::AddDataset() {
  CLI::App* group = Group("dataset", "Make the token files that jobs train on");
  CLI::App* tokenize = Command(group, "tokenize", "Turn UTF-8 text into a token file",
                               [this] { return TokenizeCommand(tokenize_); });
  File(tokenize
           ->add_option("--input", tokenize_.inputs,
                        "text files, in order; also .jsonl, .parquet, a folder of `datasets`")
           ->required());
  tokenize->add_option("--output", tokenize_.output, "the .npy file to make")->required();
  tokenize
      ->add_option("--tokenizer", tokenize_.tokenizer,
                   "`bytes`, or a Hugging Face tokenizer.json or its folder (needs Python's "
                   "tokenizers, and transformers for chats)")
      ->capture_default_str();
  tokenize->add_option("--separator", tokenize_.separator,
                       "the tokenizer's token between documents (default: its end-of-text)");
  tokenize->add_option("--field", tokenize_.field,
                       "inputs are lines of JSON, each a document with its text in this field "
                       "(default: text, in files named .jsonl or .ndjson)");
  tokenize
      ->add_option("--sequence-length", tokenize_.sequence_length,
                   "of lines of `messages`, or `prompt` and `completion`: pack whole examples into "
                   "samples of this many tokens")
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 20));
  OneOf(tokenize->add_option("--loss", tokenize_.loss, "of such lines: which tokens are targets")
            ->capture_default_str(),
        {"completions", "all"});
  tokenize->add_option("--validation-fraction", tokenize_.validation_fraction,
                       "this part of the text, its end, is kept for validation");
  tokenize->add_option("--validation-output", tokenize_.validation_output,
                       "the .npy file for validation");
}

void CommandTree::AddGenerate() {
  CLI::App* generate = Command(&app_, "generate", "Print text that a trained model continues",
                               [this] { return GenerateCommand(global_, generate_); });
  CLI::Option* checkpoint =
      generate->add_option("--checkpoint", generate_.checkpoint, "checkpoints/4 or 4");
  generate
      ->add_option("--job", generate_.job,
                   "use this job's newest checkpoint (default: the newest job's)")
      ->excludes(checkpoint);
  CLI::App* prompt = generate->add_option_group("prompt");
  prompt->add_option("--prompt", generate_.prompt, "the text to continue");
  CLI::Option* ids =
      prompt->add_option("--prompt-ids", generate_.prompt_ids, "token ids to continue: 1,2,3");
  CLI::Option* file = File(
      prompt->add_option("--prompts", generate_.prompts_file,
                         "a file of texts to continue: one a line, or of *.jsonl an object with "
                         "`prompt`; prints a line of JSON for each"));
  prompt->require_option(1);
  generate
      ->add_option("--parallel", generate_.parallel,
                   "how many of the file's texts are made side by side; each takes memory")
      ->check(CLI::Range(int64_t{1}, plan::kMostTexts))
      ->needs(file)
      ->capture_default_str();
  File(generate->add_option("--tokenizer", generate_.tokenizer,
                            "a Hugging Face folder or tokenizer.json for the text (default: "
                            "train.init_from of the job, where it is here; else bytes)"))
      ->excludes(ids);
  generate
      ->add_flag("--chat", generate_.message,
                 "the prompt is a user's message, and the answer is printed: by the tokenizer's "
                 "chat template")
      ->excludes(ids);
  File(generate->add_option("--base", generate_.base,
                            "of adapters: the folder of the model that they adapt (default: "
                            "train.init_from of the job)"));
  generate->add_flag("--trained-weights", generate_.trained_weights,
                     "of a job with train.ema: the parameters, not their average");
  generate->add_option("--tokens", generate_.tokens, "how many to add")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  generate->add_option("--temperature", generate_.temperature, "0: always the likeliest token")
      ->check(NumberRange(0.0, 100.0))
      ->capture_default_str();
  generate->add_option("--top-k", generate_.top_k, "choose among the K likeliest; 0: among all")
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  generate
      ->add_option("--top-p", generate_.top_p,
                   "choose among the likeliest tokens whose probabilities reach this sum")
      ->check(NumberRange(1e-9, 1.0))
      ->capture_default_str();
  generate->add_option("--seed", generate_.seed, "the same seed gives the same text")
      ->capture_default_str();
  generate
      ->add_option("--precision", generate_.precision,
                   "what the weights are rounded to; half the bytes are twice the speed")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}))
      ->capture_default_str();
  generate->add_option("--device", generate_.device, "cpu, or cuda: the first GPU")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  generate->add_option("--coordinator", global_.coordinator, "HOST:PORT")
      ->envname("MILEPOST_COORDINATOR");
  AddDataDir(generate);
}

void CommandTree::AddServe() {
  CLI::App* serve =
      Command(&app_, "serve", "Answer programs over HTTP with a trained model, as OpenAI's API",
              [this] { return ServeCommand(global_, serve_); });
  CLI::Option* checkpoint =
      serve->add_option("--checkpoint", serve_.checkpoint, "checkpoints/4 or 4");
  serve
      ->add_option("--job", serve_.job,
                   "use this job's newest checkpoint (default: the newest job's)")
      ->excludes(checkpoint);
  File(serve->add_option("--tokenizer", serve_.tokenizer,
                         "a Hugging Face folder or tokenizer.json (default: train.init_from of "
                         "the job, where it is here; else bytes)"));
  File(serve->add_option("--base", serve_.base,
                         "of adapters: the folder of the model that they adapt (default: "
                         "train.init_from of the job)"));
  serve->add_flag("--trained-weights", serve_.trained_weights,
                  "of a job with train.ema: the parameters, not their average");
  serve
      ->add_option("--context", serve_.context,
                   "tokens that a prompt and its answer may have, at most the model's; memory is "
                   "taken for all of them, for each text of --parallel")
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 24))
      ->capture_default_str();
  serve
      ->add_option("--parallel", serve_.parallel,
                   "how many texts are made side by side; further requests wait")
      ->check(CLI::Range(int64_t{1}, plan::kMostTexts))
      ->capture_default_str();
  serve
      ->add_option("--precision", serve_.precision,
                   "what the weights are rounded to; half the bytes are twice the speed")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}))
      ->capture_default_str();
  serve->add_option("--device", serve_.device, "cpu, or cuda: the first GPU")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  serve
      ->add_option("--host", serve_.host,
                   "the address to listen on; other than loopback only with --api-key-file")
      ->capture_default_str();
  serve->add_option("--port", serve_.port, "the port to listen on; 0: a free one")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  File(serve->add_option("--api-key-file", serve_.key_file,
                         "a file with the key that clients must send: Authorization: Bearer KEY"));
  serve->add_option("--tls-dir", serve_.tls_dir,
                    "folder with tls.crt, tls.key and ca.crt: serve over TLS");
  serve->add_option("--model-name", serve_.model_name,
                    "what clients call the model (default: the checkpoint's name)");
  serve->add_option("--coordinator", global_.coordinator, "HOST:PORT")
      ->envname("MILEPOST_COORDINATOR");
  AddDataDir(serve);
}

void CommandTree::AddWeb() {
  CLI::App* web = Command(&app_, "web", "Serve the web page and the JSON API of a coordinator",
                          [this] { return WebCommand(global_, web_); });
  AddCoordinator(web);
  web->add_option("--listen", web_.listen,
                  "HOST:PORT; other than loopback only with --tls-dir; port 0: a free one")
      ->capture_default_str();
  web->add_option("--tls-dir", web_.tls_dir,
                  "folder with tls.crt, tls.key and ca.crt: serve over TLS");
  Many(web, "--allow-host", &web_.allow_hosts,
       "a name by which browsers come here, besides localhost");
}

void CommandTree::AddVersionAndCompletion() {
  AddOutput(Command(&app_, "version", "This release", [this] { return VersionCommand(global_); }),
            {"table", "json", "yaml"});
  CLI::App* completion = Command(&app_, "completion", "Print a shell's completion script", [this] {
    const auto script = CompletionScript(Describe(), shell_);
    if (!script.ok()) return Fail(script.status());
    Print(*script);
    return int{kExitOk};
  });
  OneOf(completion->add_option("shell", shell_, "bash, zsh or fish")->required(),
        {"bash", "zsh", "fish"});
}

}  // namespace milepost::client
