<?php

namespace App\Jobs;

/** Member of a batch that adds jobs to it. */
class AddingJournal extends BatchJournal
{
    /** The jobs before they are added, serialized, in Base64: other languages can read that, too. */
    public string $jobs = '';

    public function adding(array $jobs): static
    {
        $this->jobs = base64_encode(serialize($jobs));

        return $this;
    }

    public function handle(): void
    {
        parent::handle();
        $this->batch()->add(unserialize(base64_decode($this->jobs)));
    }
}
