#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/config_variations.json: what transformers makes of variations of published configurations.

    python3 -m venv /tmp/transformers && /tmp/transformers/bin/pip install transformers==5.17.0
    git clone --depth 1 --branch v0.26.0 https://github.com/vllm-project/vllm /tmp/vllm
    /tmp/transformers/bin/python tools/config_table.py --vllm /tmp/vllm

Each case takes one of the configurations of models/ (or a form of it that people publish), and drops, renames, retypes,
nests or adds one field, or gives fields other values, drawn by the seed. transformers' own configuration class then reads it. What the class says is
recorded as a layer, with what the class does not say taken from the source of the model's modeling file: which norms
take rms_norm_eps, which way the indexer pairs dims, whether layers share selections, the function that scales softmax.
Where the class refuses, or leaves a value that the modeling file cannot compute with, the case says that there is no
layer. Neither torch nor weights are needed.

Of vLLM the table has what its source says by itself, for the architectures of deepseek_v2.py: which layers share (`shares`)
and what YaRN scales sines and cosines by (`mscale`). The statements that compute them are found in the source and run on
the configuration that transformers' class made, as vLLM has it; "none" is what they fail with. Nothing else of vLLM's is
in the table.
"""

import argparse
import ast
import copy
import json
import logging
import math
import pathlib
import random
import re
import types

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

VERSION = "5.17.0"
ROOT = pathlib.Path(__file__).resolve().parent.parent
MODELS = pathlib.Path(transformers.__file__).parent / "models"


class NoLayer(Exception):
    """transformers computes nothing from this configuration."""


# ---- what a modeling file does with a configuration ------------------------------------------------------------------


class Modeling:
    """Facts of one architecture's attention, read from its source."""

    def __init__(self, model_type):
        folder = model_type.removesuffix("_text")
        source = (MODELS / folder / f"modeling_{folder}.py").read_text()
        attention = self._class(source, r"\w*Attention", "kv_a_layernorm")
        indexer = self._class(source, r"\w*Indexer", "")
        self.norms_use_eps = bool(re.search(r"kv_a_layernorm = \w+\([^\n]*eps=config\.rms_norm_eps", attention))
        self.has_rope = "position_embeddings" in attention
        self.reads_interleave = "config.rope_interleave" in attention
        self.has_indexer = bool(indexer)
        self.indexer_interleaves = "apply_rotary_pos_emb_interleave(" in indexer
        self.kpool = "config.index_kpool" in indexer
        self.shares = "config.indexer_types[" in attention
        self.hybrid = "LinearAttention(" in source
        if self.has_rope and not self.reads_interleave:
            assert "apply_rotary_pos_emb_interleave(" in attention or "view_as_complex" in source
        self.apply_mscale = self._function(source, "yarn_apply_mscale")

    @staticmethod
    def _class(source, name, part):
        for match in re.finditer(rf"^class ({name})\(nn\.Module\):\n(?:(?!^class |^def |^@).*\n)*", source, re.M):
            if part in match.group(0):
                return match.group(0)
        return ""

    @staticmethod
    def _function(source, name):
        """A function of the file, and those that it calls, without importing torch."""
        wanted = [n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef) and n.name.startswith("yarn_")]
        names = {"math": math}
        exec(compile(ast.Module(body=wanted, type_ignores=[]), name, "exec"), names)
        return names.get(name, lambda rope_parameters, scaling: scaling)


FACTS = {}


def facts_of(model_type):
    if model_type not in FACTS:
        FACTS[model_type] = Modeling(model_type)
    return FACTS[model_type]


# ---- what vLLM does --------------------------------------------------------------------------------------------------


def find(tree, kind, condition):
    """The one node of this kind that the condition holds for."""
    found = [node for node in ast.walk(tree) if isinstance(node, kind) and condition(node)]
    assert len(found) == 1, f"{len(found)} nodes of vLLM's source are meant, not 1: is it another version?"
    return found[0]


def run_statements(statements, names):
    exec(compile(ast.Module(body=statements, type_ignores=[]), "vllm", "exec"), names)
    return names


class Vllm:
    """Statements of vLLM's source that say what a layer computes, run without importing it."""

    VERSION = "0.26"
    TYPES = ("deepseek_v2", "deepseek_v3", "deepseek_v32", "glm_moe_dsa")

    def __init__(self, folder):
        models, rope = folder / "vllm/model_executor/models", folder / "vllm/model_executor/layers/rotary_embedding"
        attention = find(ast.parse((models / "deepseek_v2.py").read_text()), ast.ClassDef,
                         lambda node: node.name == "DeepseekV2MLAAttention")
        self.sharing = find(attention, ast.If,
                            lambda node: ast.unparse(node.test) == "self.is_v32" and "_skip_topk =" in ast.unparse(node))
        choice = find(ast.parse((rope / "__init__.py").read_text()), ast.If,
                      lambda node: ast.unparse(node.test).startswith("scaling_type in ['deepseek_yarn'"))
        self.passed_on = next(node for node in choice.body if "extra_kwargs = " in ast.unparse(node))
        yarn = ast.parse((rope / "deepseek_scaling_rope.py").read_text())
        self.get_mscale = find(yarn, ast.FunctionDef, lambda node: node.name == "yarn_get_mscale")
        made = find(yarn, ast.ClassDef, lambda node: node.name == "DeepseekScalingRotaryEmbedding")
        self.arguments = find(made, ast.FunctionDef, lambda node: node.name == "__init__").args
        self.mscale = find(made, ast.Assign, lambda node: ast.unparse(node.targets[0]) == "self.mscale")
        common = ast.parse((rope / "common.py").read_text())
        self.find_dim = find(common, ast.FunctionDef, lambda node: node.name == "yarn_find_correction_dim")

    def shares(self, config, layer):
        names = {"config": config, "prefix": None, "extract_layer_index": lambda prefix: layer, "_skip_topk": False}
        return "S" if run_statements([self.sharing], names | {"self": types.SimpleNamespace(is_v32=True)})["_skip_topk"] \
            else "F"

    def yarn(self, config, rope):
        names = run_statements([self.passed_on], {"rope_parameters": rope})
        given = {argument.arg: ast.literal_eval(value) for argument, value
                 in zip(self.arguments.kwonlyargs, self.arguments.kw_defaults)} | names["extra_kwargs"]
        self_ = types.SimpleNamespace(scaling_factor=rope["factor"])
        names = run_statements([self.get_mscale, self.find_dim, self.mscale], {"math": math, "self": self_} | given)
        for beta in ("beta_fast", "beta_slow"):
            names["yarn_find_correction_dim"](given[beta], config.qk_rope_head_dim, rope["rope_theta"],
                                              rope["original_max_position_embeddings"])
        return self_.mscale

    def layer_of(self, config):
        layer = {}
        try:
            if hasattr(config, "index_topk") and config.model_type != "deepseek_v2":
                layer["shares"] = "".join(self.shares(config, i) for i in range(config.num_hidden_layers))
            if config.rope_parameters["rope_type"] == "yarn":
                layer["mscale"] = self.yarn(config, config.rope_parameters)
        except Exception as error:
            return {"none": f"{type(error).__name__}: {error}"[:160]}
        return layer


# ---- the layer -------------------------------------------------------------------------------------------------------


def integer(config, name, low=1):
    value = getattr(config, name)
    if type(value) is not int or value < low:
        raise NoLayer(f"{name} is {value!r}")
    return value


def number(fields, name, default=None):
    value = fields.get(name)
    if value is None:
        value = default
    if type(value) not in (int, float) or not math.isfinite(value):
        raise NoLayer(f"{name} is {value!r}")
    return value


def rope_of(config, facts, layer):
    """rope and YaRN, as the modeling file's rotary embedding computes them."""
    config.standardize_rope_params()  # as the computation of YaRN does once more
    rope = config.rope_parameters
    layer["theta"] = number(rope, "rope_theta")
    kind = rope["rope_type"]
    if kind not in ("default", "yarn"):
        raise NoLayer(f"rope_type is {kind!r}")
    layer["interleave"] = bool(config.rope_interleave) if facts.reads_interleave else True
    if getattr(config, "head_dim", layer["rope"]) != layer["rope"]:
        raise NoLayer(f"head_dim is {config.head_dim!r}, which rope's frequencies are made for")
    if kind == "default":
        return
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise NoLayer("partial_rotary_factor makes fewer frequencies")
    layer["yarn"] = {
        "factor": number(rope, "factor"),
        "original_max_position_embeddings": number(rope, "original_max_position_embeddings"),
        "beta_fast": number(rope, "beta_fast") if rope.get("beta_fast") else 32,
        "beta_slow": number(rope, "beta_slow") if rope.get("beta_slow") else 1,
        "mscale": number(rope, "mscale") if rope.get("mscale") else None,
        "mscale_all_dim": number(rope, "mscale_all_dim") if rope.get("mscale_all_dim") else None,
        "attention_factor": None if rope.get("attention_factor") is None else number(rope, "attention_factor"),
        "truncate": bool(rope.get("truncate", True)),
    }


def kinds_of(config, facts):
    layers = integer(config, "num_hidden_layers")
    if not facts.has_indexer:
        return "F" * layers
    letters = {"deepseek_sparse_attention": "S"} | ({"linear_attention": "L"} if facts.hybrid else {})
    types = config.layer_types
    if len(types) < layers or any(kind not in letters for kind in types):
        raise NoLayer("layer_types has kinds that no layer is")
    return "".join(letters[kind] for kind in types[:layers])


def shares_of(config, facts, kinds):
    if not facts.shares:
        return "F" * len(kinds)
    modes = config.indexer_types
    if len(modes) < len(kinds):
        raise NoLayer("indexer_types has fewer entries than layers")
    shares = "".join("S" if kind == "S" and mode == "shared" else "F" for kind, mode in zip(kinds, modes))
    if "S" in kinds and shares[kinds.index("S")] == "S":
        raise NoLayer("the first layer that selects shares")
    return shares


def indexer_of(config, facts):
    indexer = {
        "heads": integer(config, "index_n_heads"),
        "dim": integer(config, "index_head_dim"),
        "topk": integer(config, "index_topk"),
        "interleave": facts.indexer_interleaves,
        "pool": integer(config, "index_kpool") if facts.kpool else 1,
        "tail": config.index_kpool_always_select_tail if facts.kpool else False,
        "kpool": facts.kpool,
    }
    if indexer["dim"] < config.qk_rope_head_dim:
        raise NoLayer("index_head_dim is less than qk_rope_head_dim")
    return indexer


def config_of(document):
    """transformers' configuration of the language model. NoLayer where it refuses."""
    document = copy.deepcopy(document)
    model_type = document.get("model_type")
    if model_type not in CONFIG_MAPPING:
        raise NoLayer(f"model_type is {model_type!r}")
    try:
        config = CONFIG_MAPPING[model_type].from_dict(document)
        return config.text_config if "text_config" in type(config).sub_configs else config
    except Exception as error:  # the classes raise what comes: KeyError, TypeError, errors of validation
        raise NoLayer(" ".join(f"{type(error).__name__}: {error}".split())[:160]) from None


def layer_of(config, model_type):
    """What transformers computes from a configuration. NoLayer where that is nothing."""
    facts = facts_of(model_type)
    rank = config.q_lora_rank
    layer = {
        "hidden_size": integer(config, "hidden_size"),
        "heads": integer(config, "num_attention_heads"),
        "q_lora_rank": None if rank is None and not facts.has_indexer else integer(config, "q_lora_rank"),
        "R": integer(config, "kv_lora_rank"),
        "nope": integer(config, "qk_nope_head_dim"),
        "rope": integer(config, "qk_rope_head_dim", low=0),
        "v": integer(config, "v_head_dim"),
        "positions": integer(config, "max_position_embeddings"),
        "epsilon": config.rms_norm_eps if facts.norms_use_eps else 1e-6,
        "bias": config.attention_bias,
        "theta": None,
        "interleave": True,
        "yarn": None,
    }
    if integer(config, "num_key_value_heads") != layer["heads"]:
        raise NoLayer("num_key_value_heads is not num_attention_heads")
    if facts.has_rope:
        rope_of(config, facts, layer)
    scale = (layer["nope"] + layer["rope"]) ** -0.5
    layer["scale"] = facts.apply_mscale(config.rope_parameters, scale) if facts.has_rope else scale
    layer["kinds"] = kinds_of(config, facts)
    layer["shares"] = shares_of(config, facts, layer["kinds"])
    layer["indexer"] = indexer_of(config, facts) if facts.has_indexer else None
    return layer


# ---- configurations --------------------------------------------------------------------------------------------------


def bases():
    """The presets, and the forms in which their like are published."""
    models = {path.stem: json.loads(path.read_text()) for path in sorted((ROOT / "models").glob("*.json"))}
    v3, v32, flash = models["deepseek-v3"], models["deepseek-v3.2"], models["glm-5.3-flash"]
    text = flash["text_config"]
    yarn = v3["rope_scaling"] | {"mscale": 0.707, "mscale_all_dim": 0.707}
    v2 = v3 | {"model_type": "deepseek_v2", "hidden_size": 5120, "num_hidden_layers": 60, "rope_scaling": yarn}
    schedule = {k: v for k, v in models["glm-5.2"].items() if k != "indexer_types"}
    schedule |= {"index_topk_pattern": None, "index_topk_freq": 4, "index_skip_topk_offset": 3}
    older = {k: v for k, v in models["glm-5"].items() if k != "rope_parameters"}
    return models | {
        "deepseek-v2": v2,
        "deepseek-v2-lite": v2 | {"hidden_size": 2048, "num_hidden_layers": 27, "num_attention_heads": 16,
                                  "num_key_value_heads": 16, "q_lora_rank": None},
        "deepseek-v3.2 as deepseek_v3": v32 | {"model_type": "deepseek_v3"},
        "deepseek-v3.2 with IndexCache": v32 | {"index_topk_freq": 4},
        "glm-5 with rope_scaling": older | {"rope_scaling": {"type": "default", "rope_theta": 1000000.0}},
        "glm-5.2 with a schedule": schedule,
        "glm-5.3-flash, flat": text | {"model_type": "glm5_next"},
        "glm-5.3-flash, text only": text,
    }


# Fields of some architecture, which may come to others.
ADDED = {
    "index_topk": 512, "index_n_heads": 16, "index_head_dim": 128, "indexer_rope_interleave": True,
    "index_topk_freq": 2, "index_skip_topk_offset": 1, "index_topk_pattern": "FS", "indexer_types": ["full"],
    "index_kpool": 8, "index_kpool_compress": False, "index_kpool_always_select_tail": False,
    "rope_interleave": False, "rope_theta": 500000.0, "rope_scaling": {"type": "yarn", "factor": 4.0},
    "rope_parameters": {"rope_type": "default", "rope_theta": 20000.0}, "partial_rotary_factor": 0.5,
    "original_max_position_embeddings": 8192, "attention_bias": True, "head_dim": 128, "layer_types": None,
    "linear_attn_config": {"kda_layers": [0, 1, 2]}, "num_key_value_heads": 1, "rms_norm_eps": 1e-3,
    "use_index_cache": True, "text_config": {"kv_lora_rank": 256},
}
ADDED_TO_ROPE = {
    "rope_theta": 20000.0, "attention_factor": 1.25, "truncate": False, "mscale": 0.5, "mscale_all_dim": 0.5,
    "beta_fast": 64, "beta_slow": 2, "partial_rotary_factor": 0.5, "rope_type": "yarn", "factor": 2.0, "type": "default",
    "original_max_position_embeddings": 2048, "unheard_of": 1,
}
OTHER_NAMES = {
    "rope_scaling": ["rope_parameters"], "rope_parameters": ["rope_scaling"], "type": ["rope_type"],
    "rope_type": ["type"], "qk_rope_head_dim": ["head_dim"], "indexer_types": ["index_topk_pattern"],
    "index_topk_pattern": ["indexer_types"], "mscale": ["mscale_all_dim"], "mscale_all_dim": ["mscale"],
    "indexer_rope_interleave": ["rope_interleave"], "index_topk": ["index_kpool"],
}
NESTS = ["text_config", "rope_parameters", "rope_scaling", "linear_attn_config"]


def retyped(value):
    """The same thing as another type, and null."""
    if value is None:
        return [0, False, "", []]
    if isinstance(value, bool):
        return [int(value), str(value).lower(), None]
    if isinstance(value, (int, float)):
        other = float(value) if isinstance(value, int) else int(value)
        return [str(value), [value], {"value": value}, None] + ([other] if isinstance(value, int) else [])
    if isinstance(value, str):
        return [[value], 1, None]
    if isinstance(value, list):
        return [",".join(map(str, value)), {str(i): v for i, v in enumerate(value)}, None, value[:-1]]
    return [[value], json.dumps(value), None]


class Variation:
    """A configuration with one field changed, and the change as a JSON patch (RFC 6902)."""

    def __init__(self, base, rng):
        self.document = copy.deepcopy(base)
        self.rng = rng
        self.patch = []
        self.fields = []

    def places(self):
        """Objects that hold fields of the language model, with their pointers."""
        nested = "text_config" in self.document
        text, pointer = (self.document["text_config"], "/text_config") if nested else (self.document, "")
        ropes = [(text[key], f"{pointer}/{key}") for key in ("rope_scaling", "rope_parameters")
                 if isinstance(text.get(key), dict)]
        return [(text, pointer)] * 3 + ropes * 2

    def remove(self, fields, pointer, key):
        self.patch.append({"op": "remove", "path": f"{pointer}/{key}"})
        self.fields.append(key)
        return fields.pop(key)

    def put(self, fields, pointer, key, value):
        self.patch.append({"op": "add", "path": f"{pointer}/{key}", "value": copy.deepcopy(value)})
        self.fields.append(key)
        fields[key] = value

    def pick(self):
        fields, pointer = self.rng.choice(self.places())
        keys = [key for key in fields if key not in ("architectures", "model_type")
                and not key.startswith(("linear_", "hc_"))]
        return fields, pointer, self.rng.choice(keys) if keys else None

    def drop(self):
        fields, pointer, key = self.pick()
        self.remove(fields, pointer, key)

    def rename(self):
        fields, pointer, key = self.pick()
        names = OTHER_NAMES.get(key, []) * 2 + [key + "s", key.replace("_", "", 1) if "_" in key else key + "_"]
        name = self.rng.choice(names)
        value = self.remove(fields, pointer, key)
        self.put(fields, pointer, name, value)

    def retype(self):
        fields, pointer, key = self.pick()
        self.put(fields, pointer, key, self.rng.choice(retyped(fields[key])))

    def nest(self):
        fields, pointer, key = self.pick()
        if pointer and self.rng.random() < 0.5:  # outwards
            parent = self.document
            for part in pointer.split("/")[1:-1]:
                parent = parent[part]
            self.put(parent, pointer.rsplit("/", 1)[0], key, self.remove(fields, pointer, key))
            return
        nest = self.rng.choice([name for name in NESTS if name != key])
        value = self.remove(fields, pointer, key)
        if isinstance(fields.get(nest), dict):
            self.put(fields[nest], f"{pointer}/{nest}", key, value)
        else:
            self.put(fields, pointer, nest, {key: value})
            self.fields.append(key)

    def add(self):
        fields, pointer = self.rng.choice(self.places())
        added = ADDED_TO_ROPE if pointer.endswith(("rope_scaling", "rope_parameters")) else ADDED
        key = self.rng.choice([key for key in added if key != "text_config" or not pointer])
        value = added[key]
        layers = fields.get("num_hidden_layers")
        if key == "index_topk_pattern" and layers:
            value = ("FS" * layers)[:layers]
        if key == "indexer_types" and layers:
            value = (["full", "full", "shared"] * layers)[:layers]
        self.put(fields, pointer, key, value)


    def yarn(self):
        """A rope object with YaRN, most of whose fields may be left out."""
        pick = self.rng.choice
        rope = {pick(["type", "rope_type"]): "yarn", "factor": pick([2, 4.0, 8, 16.0, 40]),
                "original_max_position_embeddings": pick([2048, 4096, 8192, 32768])}
        for key, values in YARN.items():
            if self.rng.random() < 0.4:
                rope[key] = pick(values)
        return rope

    def vary_rope(self, text, pointer):
        """Another theta, inside of rope's object or beside it; or YaRN; or a field of YaRN's."""
        key = next((key for key in ("rope_scaling", "rope_parameters") if isinstance(text.get(key), dict)), None)
        theta = self.rng.choice([1e4, 5e4, 500000.0, 1000000, 3.2e7])
        change = self.rng.choice(["theta", "yarn", "yarn", "field"])
        if change == "field" and key and text[key].get("factor"):
            field, values = self.rng.choice(list(YARN.items()) + [("factor", [2, 10.5, 64])])
            self.put(text[key], f"{pointer}/{key}", field, self.rng.choice(values))
        elif change == "theta" and key and "rope_theta" in text[key]:
            self.put(text[key], f"{pointer}/{key}", "rope_theta", theta)
        elif change == "theta":
            self.put(text, pointer, "rope_theta", theta)
        else:
            key = key or self.rng.choice(["rope_scaling", "rope_parameters"])
            inside = "rope_theta" in (text.get(key) or {}) or "rope_theta" not in text
            self.put(text, pointer, key, self.yarn() | ({"rope_theta": theta} if inside else {}))

    def vary_sharing(self, text, pointer):
        """Who shares, in one of its spellings, also longer than the model; without the others that were there."""
        layers = text["num_hidden_layers"]
        for key in SHARING:
            if key in text:
                self.remove(text, pointer, key)
        form = self.rng.choice(["schedule", "pattern", "letters", "words", "types"])
        if form == "schedule":
            self.put(text, pointer, "index_topk_freq", self.rng.choice([1, 2, 3, 4]))
            if self.rng.random() < 0.7:
                self.put(text, pointer, "index_skip_topk_offset", self.rng.choice([1, 2, 3, 5]))
            return
        beyond = self.rng.choice([0, 0, 0, 1, 3])
        letters = "".join(self.rng.choice("FSS") for _ in range(layers + beyond))
        attending = [i for i, kind in enumerate(text.get("layer_types") or []) if not kind.startswith("linear")] or [0]
        letters = letters[:attending[0]] + "F" + letters[attending[0] + 1:]
        words = [{"F": "full", "S": "shared"}[letter] for letter in letters]
        self.put(text, pointer, "indexer_types" if form == "types" else "index_topk_pattern",
                 {"pattern": letters, "letters": list(letters), "words": words, "types": words}[form])

    def vary(self):
        """Other values, of the right type and range."""
        nested = "text_config" in self.document
        text, pointer = (self.document["text_config"], "/text_config") if nested else (self.document, "")
        sparse, hybrid = "index_topk" in text, "index_kpool" in text
        changes = ["value"] * 5 + ["heads", "layers"] + ["rope"] * (0 if hybrid else 4) + ["sharing"] * (3 if sparse else 0)
        change = self.rng.choice(changes + (["kinds"] * 2 if hybrid else []))
        if change == "rope":
            self.vary_rope(text, pointer)
        elif change == "sharing":
            self.vary_sharing(text, pointer)
        elif change == "heads":
            heads = self.rng.choice([8, 16, 32, 64, 96, 128])
            for key in ("num_attention_heads", "num_key_value_heads"):
                self.put(text, pointer, key, heads)
        elif change == "layers":
            self.put(text, pointer, "num_hidden_layers", self.rng.randint(4, text["num_hidden_layers"] - 1))
        elif change == "kinds":
            kinds = [self.rng.choice(["linear_attention", "deepseek_sparse_attention"])
                     for _ in range(text["num_hidden_layers"])]
            self.put(text, pointer, "layer_types", ["deepseek_sparse_attention"] + kinds[1:])
        else:
            key = self.rng.choice([key for key in VALUES if key in text and not (hybrid and "rope" in key)])
            self.put(text, pointer, key, self.rng.choice(VALUES[key]))
            if key == "qk_rope_head_dim" and "head_dim" in text:
                self.put(text, pointer, "head_dim", text[key])


# Other values that a layer can have.
VALUES = {
    "hidden_size": [1024, 3072, 4096, 8192], "kv_lora_rank": [128, 256, 384, 1024], "q_lora_rank": [512, 1024, 3072],
    "qk_nope_head_dim": [64, 96, 160], "v_head_dim": [64, 96, 192], "qk_rope_head_dim": [32, 96, 128],
    "max_position_embeddings": [4096, 65536, 262144], "rms_norm_eps": [1e-8, 1e-6, 1e-5, 1e-4],
    "index_topk": [256, 512, 1024, 4096], "index_n_heads": [8, 16, 48], "index_head_dim": [144, 192, 256],
    "index_kpool": [1, 2, 4, 8, 32], "index_kpool_always_select_tail": [True, False], "rope_interleave": [True, False],
    "indexer_rope_interleave": [True, False],
}
YARN = {"beta_fast": [16, 24.0, 64, 0], "beta_slow": [0.5, 2, 4, 0], "mscale": [0.5, 0.707, 1.0, 0],
        "mscale_all_dim": [0.5, 0.707, 1, 0], "attention_factor": [0.9, 1.25], "attn_factor": [0.8, 1.5],
        "truncate": [True, False]}
SHARING = ["indexer_types", "index_topk_pattern", "index_topk_freq", "index_skip_topk_offset"]

OPERATIONS = [Variation.drop, Variation.rename, Variation.retype, Variation.nest, Variation.add]


def outcome(document, vllm):
    try:
        config = config_of(document)
        result = {"layer": layer_of(config, document["model_type"])}
    except NoLayer as reason:
        return {"none": str(reason)}
    if document["model_type"] in Vllm.TYPES and (by_vllm := vllm.layer_of(config)):
        result["vllm"] = by_vllm
    return result


def variations(documents, rng, operations, count):
    """As many as `count`, all different, of each base in turn."""
    seen = set()
    names = list(documents)
    while len(seen) < count:
        base = names[len(seen) % len(names)]
        operation = rng.choice(operations)
        variation = Variation(documents[base], rng)
        operation(variation)
        key = (base, json.dumps(variation.patch))
        if variation.document == documents[base] or key in seen:
            continue
        seen.add(key)
        yield base, operation.__name__, variation


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--vllm", type=pathlib.Path, required=True, help=f"the source of vLLM {Vllm.VERSION}")
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--cases", type=int, default=320)
    parser.add_argument("--varied", type=int, default=260, help="cases with other values, beside these")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "tests/data/config_variations.json")
    arguments = parser.parse_args()
    if transformers.__version__ != VERSION:
        parser.error(f"needs transformers {VERSION}, got {transformers.__version__}")
    logging.disable(logging.CRITICAL)

    vllm = Vllm(arguments.vllm)
    rng = random.Random(arguments.seed)
    documents = bases()
    cases = [{"base": name, "change": "none", "fields": [], "patch": [], **outcome(base, vllm)}
             for name, base in documents.items()]
    for operations, count in ((OPERATIONS, arguments.cases), ([Variation.vary], arguments.varied)):
        for base, change, variation in variations(documents, rng, operations, count):
            cases.append({"base": base, "change": change, "fields": sorted(set(variation.fields)),
                          "patch": variation.patch, **outcome(variation.document, vllm)})
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    held = ",\n".join(f"{json.dumps(name)}:{json.dumps(base, separators=(',', ':'))}" for name, base in documents.items())
    arguments.out.write_text(f'{{"transformers":"{VERSION}","vllm":"{Vllm.VERSION}","seed":{arguments.seed},\n'
                             f'"bases":{{\n{held}\n}},\n"cases":[\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
