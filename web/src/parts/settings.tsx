// How the playground samples. An empty field leaves the choice to the server.
import { useEffect, useState } from "preact/hooks";
import { callJson } from "../api";
import type { Settings } from "../generate";
import { Panel } from "./panel";

interface Props {
  settings: Settings;
  onChange: (part: Partial<Settings>) => void;
}

export function SettingsForm({ settings, onChange }: Props) {
  const models = useModels();
  return (
    <Panel title="Sampling" class="settings">
      <label>
        System message
        <textarea
          rows={3}
          value={settings.system}
          onInput={(e) => onChange({ system: e.currentTarget.value })}
        />
      </label>
      {models.length > 1 && (
        <label>
          Model
          <select
            value={settings.model ?? models[0]}
            onChange={(e) => onChange({ model: e.currentTarget.value })}
          >
            {models.map((name) => (
              <option key={name}>{name}</option>
            ))}
          </select>
        </label>
      )}
      <NumberField
        label="Temperature"
        value={settings.temperature}
        max={2}
        step={0.1}
        onChange={(temperature) => onChange({ temperature })}
      />
      <NumberField
        label="Top p"
        value={settings.top_p}
        max={1}
        step={0.05}
        onChange={(top_p) => onChange({ top_p })}
      />
      <NumberField
        label="Max tokens"
        value={settings.max_tokens}
        min={1}
        step={1}
        unset="as many as fit"
        onChange={(max_tokens) => onChange({ max_tokens })}
      />
      <NumberField
        label="Seed"
        value={settings.seed}
        step={1}
        unset="another each time"
        onChange={(seed) => onChange({ seed })}
      />
    </Panel>
  );
}

/** The names that may be asked: the model's and its adapters'. */
function useModels(): string[] {
  const [models, setModels] = useState<string[]>([]);
  useEffect(() => {
    callJson<{ data: { id: string }[] }>("GET", "/v1/models").then(
      ({ data }) => setModels(data.map((model) => model.id)),
      () => undefined, // what is wrong with the server is told above
    );
  }, []);
  return models;
}

interface NumberProps {
  label: string;
  value: number | null;
  min?: number;
  max?: number;
  step: number;
  /** What an empty field says. */
  unset?: string;
  onChange: (value: number | null) => void;
}

// What is typed stays as it is, whatever is drawn meanwhile; what is valid counts at once.
function NumberField(props: NumberProps) {
  const { label, value, min = 0, max, step, unset = "the model's", onChange } = props;
  const [draft, setDraft] = useState(value?.toString() ?? "");
  return (
    <label>
      {label}
      <input
        type="number"
        inputMode="decimal"
        min={min}
        {...(max !== undefined && { max })}
        step={step}
        value={draft}
        placeholder={unset}
        onInput={(e) => {
          const { value: text, validity, valueAsNumber } = e.currentTarget;
          setDraft(text);
          if (text === "" && !validity.badInput) onChange(null);
          else if (validity.valid) onChange(valueAsNumber);
        }}
        onChange={(e) => e.currentTarget.reportValidity()}
      />
    </label>
  );
}
