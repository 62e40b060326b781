// SPDX-License-Identifier: Apache-2.0
// What a user does wrong, and what the machine refuses: exit status and message.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <string>

#include "support/cli.h"
#include "support/files.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;
using test::copy_config;
using test::expect_error;
using test::read_file;
using test::recording;
using test::Result;
using test::run;
using test::status_of;
using test::TemporaryFolder;
using test::write_file;

TEST(Cli, MisuseIsStatus2) {
  for (const char* arguments : {"bogus",
                                "models --bogus",
                                "models extra",
                                "--version models",
                                "models --json=maybe",
                                "route --model glm-5",
                                "route --batch 1",
                                "route --model no-such-model --batch 1",
                                "route --model ./no/such/folder --batch 1",
                                "route --model glm-5 --batch 0x3",
                                "route --model glm-5 --batch 1 --tp 3",
                                "route --model glm-5 --batch 1 --tp 0",
                                "route --model glm-5 --batch 1 --tp",
                                "route --model glm-5 --batch 1 --tp 2 --tp 2",
                                "route --model glm-5.3-flash --batch 1 --layer 0",
                                "route --model glm-5 --batch 1 --layer 78",
                                "route --model glm-5 --batch 1 --force flash",
                                "route --model glm-5 --batch 4k --workspace-limit 1KiB",
                                "route --model glm-5 --batch 1 --workspace-limit 1.5GB",
                                "route --model glm-5 --batch 1 --kv-cache-dtype fp4",
                                "route --model glm-5 --batch 1 --dtype float16",
                                "route --model glm-5 --batch 1 --device gpu",
                                "route --model glm-5 --batch 1 --threads 0",
                                "route --model glm-5 --batch 1 --threads 1000000",
                                "route --model glm-5 --batch 1 --selection drift:2",
                                "route --model glm-5 --batch 1 --selection magic",
                                "prefill --model glm-5 --batch 1 --selection recorded",
                                "prefill --model deepseek-v3 --batch 1 --selection local",
                                "route --model glm-5 --batch 1 --selection recorded",
                                "route --model deepseek-v3 --batch 1 --selection local",
                                "prefill --model glm-5 --batch 1 --check some",
                                "prefill --model glm-5 --batch 1 --prefill-chunk 0",
                                "prefill --model glm-5 --batch 1 --prefill-chunk k",
                                "prefill --model glm-5 --batch 1 --prefill-chunk 2097152k",
                                "prefill --model glm-5 --batch 1 --seed -1",
                                "bench --routing --svg bench.svg",
                                "bench --repetitions 7 --routing",
                                "bench --profile nominal",
                                "bench --svg no-such-folder/bench.svg",
                                "verify --model glm-5",
                                "prefill --model glm-5 --batch 1 --check ''",
                                "verify --model glm-5 --recording ''",
                                "validate --recording ''"}) {
    expect_error(arguments, 2);
  }
  EXPECT_EQ(run("").status, 2);
}

TEST(Cli, UsageErrorsSayWhereToLook) {
  const auto says = [](const std::string& arguments, const std::string& text) {
    const Result result = run(arguments);
    EXPECT_EQ(result.status, 2) << arguments;
    EXPECT_NE(result.err.find(text), std::string::npos) << result.err;
  };
  says("route --model glm-5 --batch 1 --tp 2 --tp 2", "headrace: --tp: given twice");
  says("route --model glm-5 --batch 1 --bogus", "headrace route --help");
  says("route --model glm-5", "headrace route --help");
  says("prefill --model glm-5 --batch 1 extra", "headrace prefill --help");
  says("bogus", "unknown command \"bogus\"; the commands are models, route, prefill, verify, validate, bench, doctor");
  says("prefill --model deepseek-v3 --batch 1000x1000k", "--batch, --tp or --prefill-chunk");
  for (const char* twice : {"models --json --json", "--json models --json", "--json --json models"}) {
    says(twice, "headrace: --json: given twice; see \"headrace models --help\"");
  }
  says("route --model glm-5 --batch", "headrace: --batch: takes a value, and none follows");
  const std::string verify = "verify --model " + recording("deepseek_v32");
  says(verify + " --recording ''", "headrace: --recording: expected a file's name, got \"\"");
  says("validate --recording ''", "headrace: --recording: expected a file's name, got \"\"");
  says("prefill --model glm-5 --batch 1 --check ''", "headrace: --check: expected nothing or \"all\", got \"\"");
  const std::string sources =
      "--selection: expected indexer, uniform, drift:RHO, pooled:P:RHO or local, got \"random\"";
  says("route --model glm-5 --batch 1 --selection random", sources);
  says("prefill --model glm-5 --batch 1 --selection random", sources);
  for (const char* other : {"''", "random", "uniform", "drift:0.5"}) {
    says(verify + " --selection " + other, "--selection: expected recorded or indexer, got");
  }
  says("route --model glm-5 --batch 1 --selection drift:2", "--selection: expected RHO in [0, 1], got");
  says("route --model glm-5 --batch 1 --workspace-limit 1PB", "TiB (or K, M, G, T) or KB, MB, GB, TB, got \"1PB\"");
  says("route --model glm-5 --batch 1 --kv-cache-scale 1",
       "\"--kv-cache-scale\" is no option of route; prefill and verify take it");
  says("models --batch=4", "\"--batch\" is no option of models; route and prefill take it");
  says("doctor --routing", "\"--routing\" is no option of doctor; bench takes it");
  says("bench --svg /tmp", "/tmp: expected a file that can be written, got a folder");
  says("bench --svg no-such-folder/x.svg", "got one in \"no-such-folder\", and there is no such folder");
  says("validate file", "\"file\" is neither an option nor the value of one");
}

TEST(Cli, ErrorsSayWhatWasProbablyMeant) {
  const auto says = [](const std::string& arguments, const std::string& text) {
    const Result result = run(arguments);
    EXPECT_EQ(result.status, 2) << arguments;
    EXPECT_NE(result.err.find(text), std::string::npos) << result.err;
  };
  says("rout --model glm-5", "unknown command \"rout\" (did you mean \"route\"?)");
  says("route --model glm-5 --bacth 4k", "unknown option \"--bacth\" (did you mean \"--batch\"?)");
  says("route --model glm-5 --batch 1 --bacth=4k", "unknown option \"--bacth\" (did you mean \"--batch\"?)");
  says("route --model glm-5.3 --batch 4k", "got \"glm-5.3\" (did you mean \"glm-5.3-flash\"?)");
  says("--vresion", "unknown option \"--vresion\" (did you mean \"--version\"?)");
  EXPECT_EQ(run("rout --json").json().at("error").at("actual"), "\"rout\" (did you mean \"route\"?)");
  EXPECT_EQ(run("route --bacth 4k --json").json().at("error").at("actual"), "\"--bacth\" (did you mean \"--batch\"?)");
  const Result far = run("route --model glm-5 --batch 4k --bogus");
  EXPECT_EQ(far.err.find("did you mean"), std::string::npos) << far.err;
}

TEST(Cli, ALayerThatIsNoneIsAnsweredWithThoseThatAre) {
  const auto says = [](const std::string& arguments, const std::string& text) {
    const Result result = run("route --batch 1 " + arguments);
    EXPECT_EQ(result.status, 2) << arguments;
    EXPECT_NE(result.err.find(text), std::string::npos) << result.err;
  };
  says("--model glm-5.3-flash --layer 0", "expected one of layers 3 to 43 in steps of 4, got 0, which is linear");
  says("--model glm-5.3-flash --layer 45", "expected one of layers 3 to 43 in steps of 4, got 45 of a model with 45");
  says("--model deepseek-v3.2 --layer 61", "expected one of layers 0 to 60, got 61");
}

TEST(Cli, DtypesAndSizesAreTakenAsPeopleSpellThem) {
  const auto same = [](const std::string& options, const std::string& plain) {
    const std::string route = "route --json --model glm-5 --batch 4k ";
    const Result result = run(route + options);
    ASSERT_EQ(result.status, 0) << options << result.err;
    EXPECT_EQ(result.json(), run(route + plain).json()) << options;
  };
  for (const char* name : {"bf16", "bfloat16", "BF16"}) {
    same(std::string("--dtype ") + name, "");
    same(std::string("--kv-cache-dtype ") + name, "");
  }
  for (const char* name : {"fp32", "float32"}) {
    same(std::string("--dtype ") + name, "--dtype float32");
    same(std::string("--kv-cache-dtype ") + name, "--kv-cache-dtype float32");
  }
  same("--kv-cache-dtype fp8_e4m3", "--kv-cache-dtype fp8");
  for (const char* size : {"32M", "32m", "32MiB", "32mib"}) {
    same(std::string("--workspace-limit ") + size, "--workspace-limit 33554432");
  }
  same("--workspace-limit 32MB", "--workspace-limit 32000000");
  EXPECT_EQ(run("route --model glm-5 --batch 4K --json").json(), run("route --model glm-5 --batch 4k --json").json());
  const std::string chunked = "prefill --batch 0 --model glm-5.3-flash --tp 8 --prefill-chunk ";
  EXPECT_EQ(run(chunked + "4K").status, 0);
  EXPECT_EQ(run(chunked + "1m").status, 0);
}

TEST(Cli, BrokenFilesAreNamedInPlainWords) {
  const TemporaryFolder folder;
  const std::string model = folder.path().string();
  const auto error = [&] { return run("route --batch 1 --model " + model).err; };
  EXPECT_NE(error().find("config.json: expected a file, got nothing: there is no file of this name"), std::string::npos)
      << error();
  write_file(folder.path() / "config.json", "{\n \"model_type\": \"glm_moe_dsa\",\n \"x\": }");
  EXPECT_NE(error().find("expected JSON, got an error in line 3, column 7: unexpected '}'"), std::string::npos)
      << error();
  EXPECT_EQ(error().find("json.exception"), std::string::npos) << error();
  write_file(folder.path() / "profile", R"({"schema": 2, "name": "x", "compute": "bf16", "threads": 1})");
  const std::string profile = run("route --batch 1 --model glm-5 --profile " + model + "/profile").err;
  EXPECT_NE(profile.find("profile: product_gflops: expected a value, got nothing"), std::string::npos) << profile;
}

/// With --help at its end, a command line is parsed and nothing is run.
TEST(Cli, ExamplesOfEveryHelpAreUnderstood) {
  ASSERT_EQ(run("prefill --model glm-5 --batch 1 --prefill-chunk 0 --help").status, 2);
  for (const std::string command : {"models", "route", "prefill", "verify", "validate", "bench", "doctor"}) {
    const std::string help = run(command + " --help").out;
    std::istringstream lines(help.substr(std::min(help.size(), help.find("Examples:"))));
    int examples = 0;
    for (std::string line; std::getline(lines, line);) {
      const std::string start = "  headrace ";
      if (!line.starts_with(start)) {
        continue;
      }
      ++examples;
      SCOPED_TRACE(line);
      const std::string arguments = line.substr(start.size(), line.find(" >") - start.size());
      const Result result = run(arguments + " --help");
      EXPECT_EQ(result.status, 0) << result.err;
      std::istringstream words(arguments);
      for (std::string word; words >> word;) {
        EXPECT_TRUE(!word.starts_with("--") || help.find("  " + word + " ") != std::string::npos) << word;
      }
    }
    EXPECT_GT(examples, 0) << help;
  }
}

TEST(Cli, OutputThatCannotBeWrittenIsStatus2) {
  for (const char* command : {"models", "models --json", "--help", "--version"}) {
    for (const char* redirection : {" >/dev/full", " >&-"}) {
      SCOPED_TRACE(std::string(command) + redirection);
      const Result result = run(std::string(command) + redirection);
      EXPECT_EQ(result.status, 2);
      EXPECT_EQ(result.err, "headrace: standard output: cannot be written\n");
    }
  }
}

TEST(Cli, ErrorsKeepTheirStatusWhereStderrCannotBeWritten) {
  for (const char* redirection : {" 2>/dev/full", " 2>&-"}) {
    SCOPED_TRACE(redirection);
    EXPECT_EQ(status_of(std::string("bogus") + redirection), 2);
    EXPECT_EQ(
        status_of(std::string("route --model glm-5 --batch 4k --force dense_mha --profile nominal") + redirection), 1);
    EXPECT_EQ(status_of(std::string("models >/dev/null") + redirection), 0);
    EXPECT_EQ(status_of(std::string("models >&-") + redirection), 2);
  }
}

TEST(Cli, BatchesBeyondMemoryAreRefusedAtOnce) {
  expect_error("prefill --model deepseek-v3 --batch 1000x1000k", 2);
  expect_error("prefill --model deepseek-v3 --batch 65536x0+2000000000", 2);
  expect_error("prefill --model glm-5 --batch 2000000000 --selection uniform", 2);
}

TEST(Cli, BadRecordingsAreStatus2) {
  const std::string verify = "verify --model " + recording("deepseek_v32");
  expect_error(verify + " --recording no_such_file", 2);
  expect_error(verify + " --recording " + recording("glm5_next") + "/recording.safetensors", 2);
  expect_error(verify + " --selection local", 2);
  expect_error(verify + " --layer 7", 2);
  const TemporaryFolder folder;
  const std::string bytes = read_file(recording("deepseek_v32") + "/recording.safetensors");
  write_file(folder.path() / "truncated", bytes.substr(0, bytes.size() - 1));
  expect_error(verify + " --recording " + (folder.path() / "truncated").string(), 2);
  write_file(folder.path() / "empty", "");
  expect_error(verify + " --recording " + (folder.path() / "empty").string(), 2);
}

TEST(Cli, AConfigurationAloneIsAModel) {
  const std::string folder = recording("deepseek_v32");
  const std::string route = "route --batch 4k --json --model ";
  auto file = run(route + folder + "/config.json").json();
  auto whole = run(route + folder).json();
  file.erase("model");
  whole.erase("model");
  EXPECT_EQ(file, whole);
  EXPECT_EQ(run("prefill --batch 4 --json --model " + folder + "/config.json").json().at("weights"), "random");
}

TEST(Cli, HelpListsEverySpellingOfACacheFormat) {
  for (const char* name : {"float32", "fp32", "bf16", "bfloat16", "fp8", "fp8_e4m3", "fp8_ds_mla", "auto"}) {
    EXPECT_NE(run("route --help").out.find(name), std::string::npos) << name;
  }
}

TEST(Cli, BadModelFoldersAreStatus2) {
  const TemporaryFolder folder;
  const std::string model = folder.path().string();
  expect_error("route --batch 1 --model " + model, 2);
  write_file(folder.path() / "config.json", "{\"model_type\": \"llama\"}");
  expect_error("route --batch 1 --model " + model, 2);
  write_file(folder.path() / "config.json", "{");
  expect_error("route --batch 1 --model " + model, 2);
}

TEST(Cli, BrokenWeightsAreNotReplacedByRandomOnes) {
  for (const char* target : {"no_such_file", "model.safetensors"}) {
    const TemporaryFolder folder;
    copy_config("deepseek_v32", folder.path());
    fs::create_symlink(target, folder.path() / "model.safetensors");
    const Result result = run("prefill --batch 4 --model " + folder.path().string());
    EXPECT_EQ(result.status, 2) << target;
    EXPECT_EQ(result.out, "") << target;
    EXPECT_NE(result.err.find("model.safetensors: expected a file"), std::string::npos) << result.err;
    EXPECT_EQ(run("route --batch 4 --model " + folder.path().string()).status, 0) << target;
  }
  const TemporaryFolder shards;
  copy_config("deepseek_v32", shards.path());
  write_file(shards.path() / "model-00001-of-00002.safetensors", "");
  EXPECT_EQ(run("prefill --batch 4 --model " + shards.path().string()).status, 2);
}

}  // namespace
}  // namespace headrace
