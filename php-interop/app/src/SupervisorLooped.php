<?php

namespace App;

/** Stands for Horizon's event of the same name: it cannot be made without a supervisor. */
final class SupervisorLooped
{
    public function __construct(\Laravel\Horizon\Supervisor $supervisor)
    {
    }
}
