// The console: who is signed in, which page is shown.
import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { get, readKey, repeat, saveKey, whenSignedOut } from "./api.js";
import { Clip } from "./clip.jsx";
import { Clips } from "./clips.jsx";
import { Create } from "./create.jsx";
import { useAddress } from "./hooks.js";
import { Metrics } from "./metrics.jsx";
import { Queue } from "./operate.jsx";
import { Icon, Notice, withCode } from "./parts.jsx";
import { Plan } from "./plan.jsx";
import { Reference } from "./reference.jsx";
import { Service } from "./service.jsx";
import { Tenants } from "./tenants.jsx";

const THEME = "filmgate.theme";
const DOCS = { "/docs": Reference, "/docs/metrics": Metrics };
const Document = DOCS[location.pathname];
const PAGES = [
  ["/", "Create", "create", Create],
  ["/clips", "Clips", "clips", Clips],
  ["/queue", "Queue", "queue", Queue, true],
  ["/service", "Service", "service", Service, true],
  ["/tenants", "Tenants", "tenants", Tenants, true],
  ["/plan", "Plan", "plan", Plan],
];

function applyTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
}

function ThemeButton() {
  const [theme, setTheme] = useState(localStorage.getItem(THEME) || "");
  const isDark = theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const change = () => {
    const next = isDark ? "light" : "dark";
    localStorage.setItem(THEME, next);
    applyTheme(next);
    setTheme(next);
  };
  return (
    <button
      type="button"
      class="nav-item"
      onClick={change}
      aria-label={isDark ? "Use light colours" : "Use dark colours"}
    >
      <Icon name="theme" />
      <span>{isDark ? "Light" : "Dark"}</span>
    </button>
  );
}

function Navigation({ user, address, onSignOut }) {
  const isAdmin = user?.scopes.includes("admin");
  const isHere = (path) => !Document && (path === "/" ? address === "/" : address.startsWith(path));
  return (
    <nav class="nav" aria-label="Pages">
      <a class="brand" href="/#/">
        <img src="/console/icon.svg" alt="" width="28" height="28" />
        <span>Filmgate</span>
      </a>
      {PAGES.filter(([, , , , needsAdmin]) => user && (!needsAdmin || isAdmin)).map(([path, label, icon]) => (
        <a class="nav-item" href={`/#${path}`} aria-current={isHere(path) ? "page" : undefined}>
          <Icon name={icon} />
          <span>{label}</span>
        </a>
      ))}
      <a class="nav-item" href="/docs" aria-current={Document ? "page" : undefined}>
        <Icon name="docs" />
        <span>API</span>
      </a>
      <div class="nav-end">
        <ThemeButton />
        {user && (
          <p class="who" title="The tenant of your key">
            {user.tenant}
          </p>
        )}
        {readKey() && (
          <button type="button" class="nav-item" onClick={onSignOut}>
            <Icon name="leave" />
            <span>Sign out</span>
          </button>
        )}
      </div>
    </nav>
  );
}

function SignIn({ problem, onKey }) {
  const [key, setKey] = useState("");
  return (
    <main id="main" class="sign-in">
      <form
        class="card composer"
        onSubmit={(event) => {
          event.preventDefault();
          onKey(key.trim());
        }}
      >
        <h1>Sign in</h1>
        <p>Paste an API key. It stays in this tab and is sent only to this server.</p>
        <label class="field">
          <span class="label">API key</span>
          <input
            type="password"
            name="key"
            autoComplete="off"
            spellcheck={false}
            value={key}
            onInput={(event) => setKey(event.currentTarget.value)}
            placeholder="fg_…"
          />
        </label>
        <Notice problem={problem} />
        <div class="actions">
          <button type="submit" class="primary" disabled={!key.trim()}>
            Sign in
          </button>
        </div>
        <p class="hint">
          {withCode(
            "`filmgate serve` writes the key of the `local` tenant to `local.key` in its data folder. Operators create keys on the Tenants page or with `filmgate tenant add`.",
          )}
        </p>
      </form>
    </main>
  );
}

function App() {
  const address = useAddress();
  const [user, setUser] = useState(undefined);
  const [problem, setProblem] = useState(null);
  const identify = async (signal) => {
    const hadKey = Boolean(readKey());
    try {
      setUser(await get("/v1/usage", { signal }));
      setProblem(null);
    } catch (error) {
      if (error.status === 401) {
        setUser(null);
        setProblem(
          hadKey ? { message: "The server does not accept this key. It may have been rotated or disabled." } : null,
        );
      } else setProblem(error);
      throw error;
    }
  };
  useEffect(() => {
    whenSignedOut(() => {
      if (readKey()) {
        saveKey("");
        setUser(null);
        setProblem({ message: "Your key is no longer valid. Sign in again." });
      }
    });
    repeat(identify, 0, new AbortController().signal);
  }, []);
  // Loaded again, the page has nothing of the tenant before: fields, models, thumbnails.
  const changeKey = (key) => {
    saveKey(key);
    location.reload();
  };
  const page = () => {
    if (Document) return <Document />;
    if (user === undefined)
      return (
        <main id="main">
          <Notice problem={problem} />
        </main>
      );
    if (user === null) return <SignIn problem={problem} onKey={changeKey} />;
    const [path, query] = address.split("?");
    const clip = /^\/clips\/([^/]+)$/.exec(path);
    if (clip) return <Clip key={clip[1]} id={clip[1]} />;
    const [, , , Found] =
      PAGES.find(([known, , , , needsAdmin]) => known === path && (!needsAdmin || user.scopes.includes("admin"))) ||
      PAGES[0];
    return <Found query={query} user={user} />;
  };
  return (
    <>
      <a
        class="skip"
        href="#main"
        onClick={(event) => {
          event.preventDefault();
          document.getElementById("main")?.focus();
        }}
      >
        Skip to content
      </a>
      <Navigation user={user} address={address} onSignOut={() => changeKey("")} />
      {page()}
    </>
  );
}

applyTheme(localStorage.getItem(THEME));
const app = document.getElementById("app");
app.replaceChildren(); // what was painted before this script ran
render(<App />, app);
