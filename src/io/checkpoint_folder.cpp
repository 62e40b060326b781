// SPDX-License-Identifier: Apache-2.0
#include "io/checkpoint_folder.h"

#include <system_error>
#include <utility>

#include "headrace/error.h"
#include "io/json.h"
#include "io/mapped_file.h"

namespace headrace::io {
namespace {

// Shards lie in the folder itself; an index must not lead to any other file.
bool is_plain_file_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
}

}  // namespace

CheckpointFolder::CheckpointFolder(std::filesystem::path folder) : folder_(std::move(folder)) {
  std::error_code ignored;
  if (std::filesystem::exists(folder_ / kSingleFile, ignored)) {
    open(std::string(kSingleFile));
    return;
  }
  const std::filesystem::path index = folder_ / "model.safetensors.index.json";
  if (!std::filesystem::exists(index, ignored)) {
    throw Error(folder_.string(), "a folder with model.safetensors or model.safetensors.index.json", "neither");
  }
  sharded_ = true;
  read_index(index);
}

void CheckpointFolder::read_index(const std::filesystem::path& index) {
  const MappedFile file(index);
  const Json json = parse_json(file.text(), index.string());
  const auto weight_map = json.is_object() ? json.find("weight_map") : json.end();
  if (weight_map == json.end() || !weight_map->is_object()) {
    throw Error(index.string() + ": weight_map", "an object from tensor to file name",
                weight_map == json.end() ? "nothing" : describe(*weight_map));
  }
  for (const auto& [name, shard] : weight_map->items()) {
    if (!shard.is_string() || !is_plain_file_name(shard.get_ref<const std::string&>())) {
      throw Error(index.string() + ": weight_map." + name, "the name of a file in the same folder", describe(shard));
    }
    shard_of_.emplace(name, shard.get<std::string>());
  }
}

const Safetensors& CheckpointFolder::open(const std::string& file) {
  // Constructed in place: an entry appears only when the file opened.
  return open_.try_emplace(file, folder_ / file).first->second;
}

bool CheckpointFolder::contains(std::string_view name) const {
  return sharded_ ? shard_of_.find(name) != shard_of_.end() : open_.begin()->second.contains(name);
}

StoredTensor CheckpointFolder::tensor(std::string_view name) {
  if (!sharded_) {
    return open_.begin()->second.tensor(name);
  }
  const auto shard = shard_of_.find(name);
  if (shard == shard_of_.end()) {
    throw Error(std::string(name), "a tensor of " + (folder_ / "model.safetensors.index.json").string(), "nothing");
  }
  return open(shard->second).tensor(name);
}

}  // namespace headrace::io
