// Builds the page into the Python package. The same sources give the same bytes.
import { createHash } from "node:crypto";
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const web = dirname(fileURLToPath(import.meta.url));
const out = join(web, "../src/quire/server/monitoring/dashboard");
const sha256 = (bytes) => createHash("sha256").update(bytes).digest("hex");

// What decides the result, in the order in which tests/unit/server/test_pages.py hashes it too.
function sourcesHash() {
  const files = ["build.mjs", "package.json", "package-lock.json", "tsconfig.json"];
  const inSrc = readdirSync(join(web, "src"), { recursive: true, withFileTypes: true });
  const names = inSrc.filter((f) => f.isFile()).map((f) => join(f.parentPath, f.name));
  const relative = names.map((name) => name.slice(web.length + 1)).sort();
  const lines = [...files, ...relative].map((f) => `${sha256(readFileSync(join(web, f)))}  ${f}\n`);
  return sha256(lines.join(""));
}

rmSync(out, { recursive: true, force: true });
mkdirSync(out, { recursive: true });
const { metafile } = await build({
  absWorkingDir: web,
  entryPoints: { app: "src/main.tsx", style: "src/style.css", icon: "src/icon.svg" },
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  loader: { ".svg": "copy" },
  legalComments: "none", // whole licences are in NOTICE.txt
  entryNames: "[name]-[hash]",
  outdir: out,
  metafile: true,
});

const built = Object.keys(metafile.outputs)
  .map((name) => basename(name))
  .sort();
const named = (stem) => built.find((name) => name.startsWith(`${stem}-`));
let page = readFileSync(join(web, "src/index.html"), "utf8");
for (const stem of ["app", "style", "icon"]) page = page.replace(`{${stem}}`, named(stem));
writeFileSync(join(out, "index.html"), page);

const notice = ["The dashboard contains these libraries, whole or in part.\n"];
for (const name of ["preact", "uplot"]) {
  const folder = join(web, "node_modules", name);
  const { version } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
  notice.push(`\n${name} ${version}\n\n${readFileSync(join(folder, "LICENSE"), "utf8").trim()}\n`);
}
writeFileSync(join(out, "NOTICE.txt"), notice.join(""));

const files = {};
for (const name of readdirSync(out).sort()) files[name] = sha256(readFileSync(join(out, name)));
const manifest = { sources: sourcesHash(), files };
writeFileSync(join(out, "manifest.json"), `${JSON.stringify(manifest, null, 2)}\n`);
