// Builds the console into the Python package. File names are fixed: CI builds again and compares bytes.
import { createHash } from "node:crypto";
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { defineConfig } from "vite";

const OUTPUT = "../src/filmgate/api/static";
const SINGLE = ["index.html", "package-lock.json", "package.json", "vite.config.js"];

// A digest of the sources beside the build: a test fails when one is changed without the other.
function digestSources() {
  const names = [
    ...SINGLE,
    ...["public", "src"].flatMap((folder) => readdirSync(folder).map((name) => `${folder}/${name}`)),
  ];
  const digest = createHash("sha256");
  for (const name of names.sort()) digest.update(`${name}\n`).update(readFileSync(name));
  return digest.digest("hex");
}

export default defineConfig({
  base: "/console/",
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  plugins: [{ name: "digest", closeBundle: () => writeFileSync(`${OUTPUT}/sources.sha256`, `${digestSources()}\n`) }],
  build: {
    outDir: OUTPUT,
    emptyOutDir: true,
    assetsDir: "",
    modulePreload: { polyfill: false },
    rolldownOptions: {
      output: { entryFileNames: "console.js", assetFileNames: "console[extname]" },
    },
  },
});
