// The API reference, drawn from /openapi.json of this server.
import { useState } from "preact/hooks";
import { KEY_HINT } from "./code.js";
import { useData } from "./hooks.js";
import { CopyButton, Notice, Page, withCode } from "./parts.jsx";

const METHODS = ["get", "post", "put", "patch", "delete"];

function resolve(schema, document) {
  return schema?.$ref ? document.components.schemas[schema.$ref.split("/").pop()] : schema || {};
}

function typeOf(schema, document) {
  if (!schema) return "";
  if (schema.$ref) {
    const found = resolve(schema, document);
    return found.enum ? found.enum.join(" | ") : schema.$ref.split("/").pop();
  }
  if (schema.enum) return schema.enum.join(" | ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.anyOf) return [...new Set(schema.anyOf.map((each) => typeOf(each, document)))].join(" | ");
  if (schema.type === "array") return `${typeOf(schema.items, document)}[]`;
  return schema.format === "binary" ? "file" : schema.type || "any";
}

function Properties({ schema, document }) {
  const found = resolve(schema, document);
  const required = new Set(found.required || []);
  const rows = Object.entries(found.properties || {});
  if (!rows.length) return <p class="note">{found.description || "Any JSON."}</p>;
  return (
    <dl class="properties">
      {rows.map(([name, each]) => (
        <div>
          <dt>
            <code>{name}</code>
            {required.has(name) && <span class="need">required</span>}
          </dt>
          <dd>
            <code>{typeOf(each, document)}</code> {each.description}
          </dd>
        </div>
      ))}
    </dl>
  );
}

function curl(path, method, body) {
  const lines = [
    `curl ${method === "get" ? "" : `-X ${method.toUpperCase()} `}${location.origin}${path}`,
    `  -H "Authorization: Bearer $OPENAI_API_KEY"`,
  ];
  if (body) lines.push(`  -H "Content-Type: application/json"`, `  -d '${JSON.stringify(body)}'`);
  return lines.join(" \\\n");
}

function sample(schema, document) {
  const found = resolve(schema, document);
  const names = found.required || [];
  return Object.fromEntries(
    names.map((name) => {
      const each = found.properties[name];
      return [
        name,
        each.examples?.[0] ?? (name === "prompt" ? "a red ball bounces on the grass" : each.type === "string" ? "" : 0),
      ];
    }),
  );
}

function Operation({ path, method, operation, document }) {
  const [isOpen, setOpen] = useState(false);
  const body = operation.requestBody?.content?.["application/json"]?.schema;
  const responses = Object.entries(operation.responses || {});
  const text = curl(path, method, body && sample(body, document));
  return (
    <details class="card operation" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>
        <span class={`method is-${method}`}>{method.toUpperCase()}</span>
        <code class="path">{path}</code>
        <span class="note">{(operation.description || operation.summary).split(/\.\s/)[0].replace(/\.$/, "")}</span>
      </summary>
      {isOpen && (
        <div class="stack">
          <p>{operation.description}</p>
          {operation.parameters?.length > 0 && (
            <>
              <h3>Parameters</h3>
              <dl class="properties">
                {operation.parameters.map((each) => (
                  <div>
                    <dt>
                      <code>{each.name}</code>
                      {each.required && <span class="need">required</span>}
                    </dt>
                    <dd>
                      <code>{typeOf(each.schema, document)}</code> in {each.in}. {each.description}
                    </dd>
                  </div>
                ))}
              </dl>
            </>
          )}
          {body && (
            <>
              <h3>Body</h3>
              <Properties schema={body} document={document} />
            </>
          )}
          {responses.map(([status, response]) => {
            const content = Object.entries(response.content || {})[0];
            return (
              <div>
                <h3>
                  {status}{" "}
                  <span class="note">
                    {response.description}
                    {content ? `, ${content[0]}` : ""}
                  </span>
                </h3>
                {status.startsWith("2") && content?.[1].schema && (
                  <Properties schema={content[1].schema} document={document} />
                )}
              </div>
            );
          })}
          <section class="code" aria-label="Example">
            <div class="tabs">
              <CopyButton text={text} />
            </div>
            <pre tabIndex={0}>{text}</pre>
            <p class="hint">{withCode(KEY_HINT)}</p>
          </section>
        </div>
      )}
    </details>
  );
}

export function Reference() {
  const { data: document, error } = useData("/openapi.json");
  const [search, setSearch] = useState("");
  if (!document)
    return (
      <Page title="API reference">
        <Notice problem={error} />
      </Page>
    );
  const operations = Object.entries(document.paths).flatMap(([path, methods]) =>
    METHODS.filter((method) => methods[method]).map((method) => ({ path, method, operation: methods[method] })),
  );
  const found = operations.filter(({ path, operation }) =>
    `${path} ${operation.summary} ${operation.description}`.toLowerCase().includes(search.toLowerCase()),
  );
  const tags = [...new Set(found.map(({ operation }) => operation.tags?.[0] || "other"))];
  return (
    <Page
      title="API reference"
      lead={`Version ${document.info.version}. Any OpenAI SDK works: set its base URL to ${location.origin}/v1.`}
      actions={
        <a class="button" href="/openapi.json">
          OpenAPI document
        </a>
      }
    >
      <div class="filters" role="search">
        <input
          type="search"
          aria-label="Search routes"
          placeholder="Search routes"
          value={search}
          onInput={(event) => setSearch(event.currentTarget.value)}
        />
      </div>
      {tags.map((tag) => (
        <section class="stack" aria-label={tag}>
          <h2 class="tag">{tag}</h2>
          {found
            .filter(({ operation }) => (operation.tags?.[0] || "other") === tag)
            .map((each) => (
              <Operation key={each.method + each.path} {...each} document={document} />
            ))}
        </section>
      ))}
    </Page>
  );
}
