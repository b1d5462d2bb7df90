"""The shapes of secrets: the formats that their issuers have published, and the usual names.

Standard library only. No pattern crosses a quote: a document stays JSON when secrets are masked in its text.
"""

from __future__ import annotations

import functools
import re

# -- by their beginning ---------------------------------------------------------------------------

# What stands in every token of the kind, for a search that is ten times as fast, and what follows it. Files are called
# `hf_trainer_eval.py`, `sk-learn-notes` and `npm_packages.json`: where a beginning is a word, what follows must be no word.
LONG = r"[\w-]{16,}"
PLAIN = r"(?:[A-Za-z0-9]{16,}|(?=[a-z]*[A-Z0-9])[A-Za-z0-9]{8,}(?![\w-]))"
HEX32 = r"[0-9a-fA-F]{32}\b"
PREFIXES: tuple[tuple[str, str], ...] = (
    # Clouds
    ("AKIA", r"[A-Z0-9]{8,}"), ("ASIA", r"[A-Z0-9]{8,}"), ("ABIA", r"[A-Z0-9]{16}"), ("ACCA", r"[A-Z0-9]{16}"),
    ("AIza", r"[\w-]{8,}"), ("ya29.", r"[\w.-]{20,}"), ("GOCSPX-", LONG), ("LTAI", r"[A-Za-z0-9]{16,}"),
    ("AKID", r"[A-Za-z0-9]{28,}"), ("dop_v1_", LONG), ("doo_v1_", LONG), ("dor_v1_", LONG), ("HRKU-", LONG),
    ("ocid1.credential.", LONG), ("fo1_", LONG), ("FlyV1 ", r"[\w+/=,-]{20,}"), ("nfp_", LONG), ("rnd_", PLAIN),
    ("tskey-", LONG), ("v1.0-", r"[0-9a-f]{24}-[0-9a-f]{40,}"), ("sbp_", LONG), ("pscale_tkn_", LONG),
    ("pscale_pw_", LONG), ("pscale_oauth_", LONG), ("napi_", LONG), ("dp.pt.", LONG), ("dp.st.", r"[\w.-]{16,}"),
    ("dp.ct.", LONG), ("dp.sa.", LONG), ("dp.scim.", LONG), ("dp.audit.", LONG),
    ("ABSK", r"[A-Za-z0-9+/]{60,}={0,2}"), ("1//0", r"[\w-]{30,}"), ("AQVN", r"[\w-]{35,}"), ("t1.", r"[\w-]+={0,2}\.[\w-]{86}={0,2}"),
    ("YC", r"(?=[A-Z_-]*[a-z])(?=[A-Za-z_-]*[0-9])[\w-]{38}\b"), ("tk-us-", LONG), ("ico-", r"[A-Za-z0-9]{32}\b"), ("dnkey-", LONG),
    ("sha256~", r"[\w-]{40,}"), ("sb_secret_", LONG), ("4b1d", r"[A-Za-z0-9]{38}\b"),
    # Code, packages, builds
    ("ghp_", PLAIN), ("gho_", PLAIN), ("ghu_", PLAIN), ("ghs_", PLAIN), ("ghr_", PLAIN), ("github_pat_", r"[\w-]{8,}"),
    ("glpat-", r"[\w-]{8,}"), ("gldt-", LONG), ("glrt-", LONG), ("glcbt-", LONG), ("glptt-", LONG), ("glft-", LONG),
    ("glagent-", LONG), ("glsoat-", LONG), ("gloas-", LONG), ("glimt-", LONG), ("GR1348941", LONG), ("ATBB", r"[A-Za-z0-9]{28,}"),
    ("npm_", PLAIN), ("pypi-", r"[\w-]{8,}"), ("rubygems_", r"[0-9a-f]{32,}"), ("cio", r"[A-Za-z0-9]{32}\b"),
    ("oy2", r"[a-z0-9]{43}\b"), ("dckr_pat_", LONG), ("dckr_oat_", LONG), ("CLOJARS_", r"[a-z0-9]{40,}"),
    ("CCIPAT_", LONG), ("bkua_", LONG), ("sgp_", LONG), ("squ_", LONG), ("sqp_", LONG), ("sqa_", LONG),
    ("sntrys_", r"[\w+/=]{16,}"), ("sntryu_", LONG), ("AKCp", r"[A-Za-z0-9]{40,}"), ("PMAK-", LONG), ("pul-", r"[0-9a-f]{40}\b"),
    ("ATATT3", r"[\w=-]{20,}"), ("ATCTT3", r"[\w=-]{20,}"), ("lin_api_", LONG), ("ntn_", PLAIN), ("figd_", LONG),
    ("glffct-", LONG), ("glwt-", LONG), ("lin_oauth_", LONG), ("rdme_", LONG), ("API-", r"[A-Z0-9]{26}\b"), ("cmVmd", r"[A-Za-z0-9]{59}\b"),
    ("secret_", r"(?=[a-z]*[A-Z0-9])[A-Za-z0-9]{43}\b"), ("A3-", r"[A-Z0-9]{6}(?:-[A-Z0-9]{5,11}){4,5}"), ("fio-u-", r"[\w=-]{40,}"),
    ("sm_aat_", LONG), ("sm_pat_", LONG), ("sm_sat_", LONG), ("polar_oat_", LONG),
    # Models, data, experiments
    ("hf_oauth_", r"[\w-]{8,}"), ("hf_jwt_", r"[\w-]{8,}"), ("hf_", PLAIN), ("api_org_", r"[A-Za-z]{34}\b"), ("wandb_v1_", LONG),
    ("sk-ant-", r"[\w-]{8,}"), ("sk-proj-", r"[\w-]{8,}"), ("sk-or-", r"[\w-]{8,}"), ("sk-lf-", r"[\w-]{8,}"),
    ("pk-lf-", r"[0-9a-f-]{36}"), ("sk-", r"(?=[\w-]*[A-Z0-9])[\w-]{8,}"), ("gsk_", PLAIN), ("xai-", LONG), ("r8_", PLAIN), ("pplx-", LONG), ("nvapi-", LONG),
    ("csk-", LONG), ("pcsk_", LONG), ("jina_", r"[A-Za-z0-9]{20,}"), ("tvly-", LONG), ("rpa_", PLAIN), ("fw_", r"[A-Za-z0-9]{22,}"),
    ("lsv2_pt_", LONG), ("lsv2_sk_", LONG), ("dapi", HEX32), ("dt0c01.", r"[A-Z0-9]{20,}[\w.]*"), ("pnu_", PLAIN), ("rf_", r"[A-Za-z0-9]{20,}"),
    ("tgp_v1_", LONG), ("KGAT_", LONG), ("pk.eyJ", r"[\w-]{20,}\.[\w-]{20,}"), ("sk.eyJ", r"[\w-]{20,}\.[\w-]{20,}"),
    # Messages, mail, people
    ("xoxa-", r"[\w-]{8,}"), ("xoxb-", r"[\w-]{8,}"), ("xoxp-", r"[\w-]{8,}"), ("xoxr-", r"[\w-]{8,}"),
    ("xoxs-", r"[\w-]{8,}"), ("xoxe-", r"[\w-]{8,}"), ("xoxe.xox", r"[\w-]{8,}"), ("xapp-", r"[\w-]{8,}"),
    ("SG.", r"[\w-]{16,}\.[\w-]{16,}"), ("xkeysib-", LONG), ("xsmtpsib-", LONG), ("key-", HEX32), ("re_", r"[A-Za-z0-9]{8}_[A-Za-z0-9]{20,}"),
    ("SK", HEX32), ("EAACEdEose0cBA", r"[A-Za-z0-9]+"), ("EAAM", r"[A-Za-z0-9]{80,}"), ("EAAC", r"[A-Za-z0-9]{80,}"), ("oauth:", r"[a-z0-9]{30}\b"), ("tfp_", LONG),
    # Money, shops
    ("sk_live_", r"[A-Za-z0-9]{8,}"), ("sk_test_", r"[A-Za-z0-9]{8,}"), ("rk_live_", r"[A-Za-z0-9]{8,}"),
    ("rk_test_", r"[A-Za-z0-9]{8,}"), ("whsec_", r"[\w+/=]{16,}"), ("shpat_", LONG), ("shpca_", LONG), ("shppa_", LONG),
    ("shpss_", LONG), ("sq0atp-", LONG), ("sq0csp-", LONG), ("EAAA", r"[\w+=-]{60,}"), ("access-production-", r"[0-9a-f-]{36}"),
    ("access-sandbox-", r"[0-9a-f-]{36}"), ("FLWSECK", r"[\w-]{16,}"), ("EZAK", r"[A-Za-z0-9]{54}"), ("EZTK", r"[A-Za-z0-9]{54}"),
    ("shippo_live_", LONG), ("shippo_test_", LONG), ("duffel_live_", LONG), ("duffel_test_", LONG),
    # Vaults, monitoring
    ("hvs.", LONG), ("hvb.", LONG), ("hvr.", LONG), ("ops_eyJ", LONG), ("AGE-SECRET-KEY-1", r"[A-Z0-9]{20,}"),
    ("glc_", r"[\w+/=]{20,}"), ("glsa_", LONG), ("NRAK-", LONG), ("NRJS-", LONG), ("NRII-", LONG), ("CFPAT-", LONG), ("p8e-", LONG),
)  # fmt: skip

# -- by their form --------------------------------------------------------------------------------

# Words, one of which is in every text that the pattern matches; the pattern; what is shown instead of its match.
MASK = "***"
SHORT = 4096
PEM = r"(?:[A-Za-z0-9+/=:,.\s-]|\\+[nr])"
FORMS: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (("PRIVATE",), rf"(-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----)(?:{PEM}(?!----END))*{PEM}?(?:-?----END [A-Z ]*PRIVATE KEY(?: BLOCK)?-----)?", rf"\1{MASK}"),
    (("eyJ",), r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*", MASK),  # a JSON web token
    (("://",), r"(?<=://)[^/@\s\"\\?#]+(?=@)", MASK),  # user and password in an address
    (("earer",), r"(?<=[Bb]earer )[\w.~+/=-]{8,}", MASK),
    (("asic",), r"(?<=[Bb]asic )[A-Za-z0-9+/]{8,}={0,2}(?![\w-])", MASK),
    (("hooks.slack.com/",), r"(?<=hooks\.slack\.com/)[\w/-]{8,}", MASK),
    (("/webhooks/",), r"(?<=/webhooks/)[\w/-]{8,}", MASK),  # Discord's
    (("webhook.office.com/", "/webhookb2/"), r"(?<=/webhookb2/)[\w@/-]{8,}", MASK),
    (("logic.azure.com",), r"(?<=/triggers/)[\w/?=&.%-]{16,}", MASK),
    (("chat.googleapis.com/",), r"(?<=chat\.googleapis\.com/)[\w/-]{8,}", MASK),
    ((":AA",), r"\b\d{8,10}:AA[\w-]{30,}", MASK),  # Telegram's bots
    (("MT", "Mj", "Mz", "ND", "NT", "Nj", "Nz", "OD", "OT"), r"\b[MNO][\w-]{23,25}\.[\w-]{6}\.[\w-]{27,}", MASK),  # Discord's bots
    (("8Q~",), r"\b\w{3}8Q~[\w.~-]{31,34}", MASK),  # Azure's clients
    (("AccountKey=", "SharedAccessKey=", "SharedSecretValue="), r"(?<=Key=|lue=)[A-Za-z0-9+/]{20,}={0,2}", MASK),
    (("-us",), r"\b[0-9a-f]{32}-us\d{1,2}\b", MASK),  # Mailchimp's
    (("pat",), r"\bpat[A-Za-z0-9]{14}\.[0-9a-f]{64}\b", MASK),  # Airtable's
    (("pat.", "sat."), r"\b[ps]at\.[\w-]{22}\.[A-Za-z0-9]{24}\.[A-Za-z0-9]{20}\b", MASK),  # Harness's
    (("_mmk",), r"\b[A-Za-z0-9]{6}_[A-Za-z0-9]{29}_mmk\b", MASK),  # MaxMind's
    (("_gitlab_session=",), r"(?<=_gitlab_session=)[0-9a-z]{16,}", MASK),
    ((".atlasv1.",), r"\b[A-Za-z0-9]{14}\.atlasv1\.[\w-]{30,}", MASK),  # Terraform Cloud's
    (
        ("?", "&"),
        r"([?&][\w.-]*(?i:key|token|secret|passw|credential|auth|sig)[\w.-]*=)[^&\s\"'\\#]+",
        rf"\1{MASK}",
    ),
)  # fmt: skip


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """At first use: a rank that meets no secret pays for none of them."""
    return re.compile(pattern)


def mask_forms(text: str) -> str:
    """The text without what is a secret by its form."""
    told = _distinct(text)
    for prefix, rest in PREFIXES:
        if prefix.rstrip() in told:
            text = _compiled(rf"(?<![A-Za-z0-9]){re.escape(prefix)}{rest}").sub(MASK, text)
    for hints, pattern, shown in FORMS:
        if any(hint in told for hint in hints):
            text = _compiled(pattern).sub(shown, text)
    return text


def _distinct(text: str) -> str:
    """Each word once: dumps and names repeat themselves, and two hundred beginnings are looked for."""
    return text if len(text) < SHORT else " ".join(dict.fromkeys(text.split(" ")))


# -- by their name --------------------------------------------------------------------------------

WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
# Whatever stands around these.
STEMS = re.compile(
    r"passw|passphrase|passwd|pgpass|secret|credential|apikey|authtoken|accesskey|privatekey|cookie", re.IGNORECASE
)  # fmt: skip
SECRET_WORDS = frozenset({"token", "auth", "oauth", "authorization", "pwd", "bearer", "creds"})
# Whatever else is in the name.
ALWAYS = frozenset({"webhook", "webhooks", "dsn", "jwt", "sas", "pat"})
# The last word of a name only, and what in front of it makes something else of it.
LAST_WORDS = {
    "key": frozenset(
        ["public", "sort", "primary", "foreign", "group", "index", "map", "cache", "dataset", "label", "feature", "image", "text", "input", "target", "column", "state", "dict", "json", "metric", "monitor", "partition", "join", "unique", "row", "record", "sample", "batch", "attention", "query", "value", "pad", "padding", "hot"]
    ),
    "keys": frozenset({"state", "dict", "batch", "input", "output", "label", "metric", "missing", "unexpected", "public"}),
    "pass": frozenset(["forward", "backward", "num", "n", "single", "two", "first", "second", "multi", "one", "per", "max", "train", "eval", "by"]),
    "pin": frozenset({"gpu", "cpu", "memory"}),
    "private": frozenset[str](),
}  # fmt: skip
# A count or a size of tokens, the name of a special one, where a secret lies, whether there is any.
HARMLESS = frozenset(
    {
        "num", "n", "max", "min", "count", "counts", "size", "len", "length", "dim", "per", "type", "types",
        "id", "ids", "embedding", "embeddings", "drop", "rate", "budget", "limit", "batch", "pad", "eos", "bos",
        "cls", "sep", "unk", "mask", "special", "image", "prefix", "stop", "end", "start", "path", "file",
        "files", "dir", "directory", "ttl", "expiry", "timeout", "method", "mode", "url", "uri", "host", "port",
        "server", "sock", "socket", "name", "names", "merging", "pruning", "mixing", "shift", "level",
        "classification", "hf2", "index", "padding",
    }
)  # fmt: skip

PLACES = frozenset({"path", "file", "dir", "count"})


@functools.lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Whether a variable or option of that name holds a secret."""
    words = [word.lower() for word in WORDS.findall(name)]
    if ALWAYS.intersection(words):
        return True
    if STEMS.search(name):
        return not words or words[-1] not in HARMLESS
    if SECRET_WORDS.intersection(words):
        return HARMLESS.isdisjoint(words)
    if not words or words[-1] not in LAST_WORDS or PLACES.intersection(words):
        return False
    # A lone `KEY` is a placeholder, or an axis.
    before = words[-2] if len(words) > 1 else ""
    return before not in LAST_WORDS[words[-1]] and (bool(before) or words[-1] != "key")


# -- by how little they look like words -----------------------------------------------------------

CANDIDATE = re.compile(r"(?<![\w+/=-])[A-Za-z0-9+/_=-]{20,}")
HEX = re.compile(r"[0-9a-f]{32,}|[0-9A-F]{32,}")
UUID = re.compile(r"[\w-]{0,8}?[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
# Commits and checksums, which a report is better with.
KNOWN_BEFORE = re.compile(
    r"(?:commit|git|sha\d*|revision|rev|checksum|digest|[@:])[\s:=\"'`]*$", re.IGNORECASE
)
WORDLIKE = re.compile(r"[A-Z]?[a-z]{3,}|[A-Z]{4,}|[0-9]{4,}")
MOST_WORDLIKE = 0.5
# `password = "..."`, `API_KEY=...`: in code, in messages.
OF_VALUE = r"""[^\s"'`,;(){}\[\]<>|]"""
VALUE = re.compile(f"{OF_VALUE}{{6,}}")
# What is assigned may be an assignment. A name begins where a word does, or what is assigned: a word of any length is read once.
ASSIGNMENT = re.compile(rf"""([\w.-]{{3,}})(["']?\s{{0,3}}[=:]\s{{0,3}}[rbfRBF]?["']?)(?={OF_VALUE}{{6}})""")
ASSIGNED = re.compile(rf"(?<![\w.-]){ASSIGNMENT.pattern}")
MOST_OF_NAME = 60  # its end
# `--password=...`, `--api-key ...`: a command line in a message.
OPTION = re.compile(r"""(?<![\w-])(--?[\w-]{3,60})(=|[ \t]+)(["']?)([^\s"'-][^\s"']*)""")
CODE = re.compile(r"[A-Za-z_][\w.]*\.?$|None|True|False|\*\*\*")
# `password=plainword`: what may be a plain word is one that somebody chose; a token is made up, and a word of a text called so too.
CHOSEN = re.compile(r"passw|passphrase|passwd|pgpass|pwd|secret|credential|apikey|accesskey", re.IGNORECASE)
# What is said of a password instead of itself.
STATES = frozenset(
    {
        "absent", "changed", "correct", "default", "denied", "disabled", "enabled", "expired", "failed", "hidden", "incorrect", "invalid",
        "masked", "missing", "needed", "optional", "present", "prompt", "provided", "redacted", "refused", "rejected", "required",
        "undefined", "unknown", "wrong",
    }
)  # fmt: skip


def mask_likely(text: str) -> str:
    """The text, made for others to read, without what may be a secret by its looks or by what is assigned to."""
    text = OPTION.sub(_given, _without_assigned(mask_forms(text)))
    return CANDIDATE.sub(_random, text)


def _given(match: re.Match[str]) -> str:
    name, between, quote, _ = match.groups()
    return f"{name}{between}{quote}{MASK}" if is_secret_name(name) else match[0]


def _without_assigned(text: str) -> str:
    shown, done = [], 0
    found = ASSIGNED.search(text)
    while found:
        here = found.end()
        if value := _secret_value(text, found):
            shown += [text[done:here], MASK]
            here = done = value.end()
        found = ASSIGNMENT.match(text, here) or ASSIGNED.search(text, here)
    return "".join([*shown, text[done:]])


def _secret_value(text: str, assigned: re.Match[str]) -> re.Match[str] | None:
    """The value, if the name is that of a secret, and the value no code."""
    name, equals = assigned.groups()
    if not is_secret_name(name[-MOST_OF_NAME:]):
        return None
    value = VALUE.match(text, assigned.end())
    literal = equals[-1] in "\"'" or ("=" in equals.strip() and name.isupper())
    if value and (literal or not CODE.match(value[0]) or (equals == "=" and _is_chosen(name, value))):
        return value
    return None


def _is_chosen(name: str, value: re.Match[str]) -> bool:
    """Whether a word is a password, and not code that says where there is one: `password=args.password`, `password=read(...)`."""
    word, behind = value[0].rstrip("."), value.string[value.end() : value.end() + 1]
    if not CHOSEN.search(re.sub(r"[_.-]", "", name)) or behind in ("(", "["):
        return False
    is_code = "." in word or word in ("None", "True", "False", MASK) or is_secret_name(word)
    return not is_code and word.lower() not in STATES


def _random(match: re.Match[str]) -> str:
    word = match[0].rstrip("=")
    if UUID.fullmatch(word) or (
        HEX.fullmatch(word) and KNOWN_BEFORE.search(match.string[: match.start()][-16:])
    ):
        return match[0]
    return MASK if HEX.fullmatch(word) or is_random(word) else match[0]


def is_random(word: str) -> bool:
    """Whether small and large letters and digits follow each other as in no name: of a path, in all of its parts."""
    kinds = [any(map(test, word)) for test in (str.islower, str.isupper, str.isdigit)]
    wordlike = sum(len(each) for each in WORDLIKE.findall(word))
    return (
        all(kinds)
        and wordlike < MOST_WORDLIKE * len(word)
        and not any(len(p) < 4 for p in word.split("/")[1:-1])
    )
